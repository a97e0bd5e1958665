"""`inspect_file`: everything that a file's header and markers say, as an `Inspection`. Loads no weight."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from model.checkpoints import capability, sums
from model.checkpoints.architecture import solve_dims
from model.checkpoints.contents import Contents, read_contents
from model.checkpoints.descriptions import describe, load_table
from model.checkpoints.header import Header, OpenCheckpoint
from model.checkpoints.holes import FoundHoles, find_holes
from model.checkpoints.identity import keyset_md5
from model.checkpoints.lora_keys import is_lora
from model.checkpoints.loras import FoundLora, read_lora
from model.checkpoints.matching import match_hash, match_published
from model.checkpoints.notes import notes_on, notes_on_lora
from model.checkpoints.targets import valid_text
from queue_schemas.inspections import (
    Container,
    Holes,
    Inspection,
    LoraFacts,
    NameList,
    Part,
    RuntimeUse,
)
from queue_schemas.names import TransformerTask
from queue_schemas.published import PublishedFile, PublishedFiles
from queue_schemas.text import shortened

LISTED_MAX: Final = 50
PROBLEMS_MAX: Final = 20
VALUE_CHARACTERS_MAX: Final = 4096
HASH_BYTES: Final = 4 * 1024 * 1024
LORA_VARIANT: Final = "lora_turbo_rank128"
BOTH_TASKS: Final[tuple[TransformerTask, ...]] = ("fl2va", "ref2va")
OnBytes = Callable[[int], None]


def inspect_file(
    path: Path, *, registry: PublishedFiles, strict: bool = False, on_hashed: OnBytes | None = None
) -> Inspection:
    """Inspect one file; given `on_hashed`, also hash all of it, telling that how many bytes were added.

    Raises CheckpointFileError.
    """
    with OpenCheckpoint(path, strict=strict) as file:
        lora = is_lora(file.header.tensors)
        found = _inspect_lora(file, registry) if lora else _inspect_model(file, registry)
        if on_hashed is None:
            return found
        verdict, known = match_hash(file.header, hash_file(file, on_hashed), registry)
        named = None if known is None else known.name
        task = () if known is None or known.task is None else (known.task,)
        return found.model_copy(
            update={
                "hash": verdict,
                "published": found.published.model_copy(update={"by_sha256": named}),
                "tasks": task or found.tasks,
            }
        )


def hash_file(file: OpenCheckpoint, on_bytes: OnBytes) -> str:
    """Return the SHA-256 of the whole file, told in steps of 4 MiB."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(HASH_BYTES))
    for offset in range(0, file.header.size_bytes, HASH_BYTES):
        part = buffer[: file.header.size_bytes - offset]
        file.read_into(part, offset)
        digest.update(part)
        on_bytes(len(part))
    return digest.hexdigest()


def _inspect_model(file: OpenCheckpoint, registry: PublishedFiles) -> Inspection:
    header, contents, holes = file.header, read_contents(file), find_holes(file)
    recognised, comparison = contents.recognised, contents.comparison
    dims = {} if comparison is None else dict(comparison.description.dims)
    released = recognised is not None and dims == load_table(recognised.base)["dims"]
    published = match_published(header, variant=contents.variant, released_size=released, registry=registry)
    family = None if recognised is None else recognised.family
    return Inspection(
        path=valid_text(str(file.path)),
        family=family,
        variant=contents.variant,
        released_size=released,
        tasks=_tasks(published.by_header, registry) if family == "transformer" else (),
        layout=_layout(contents),
        depth=None if recognised is None else recognised.depth,
        dims=dims,
        container=_container(header),
        published=published,
        num_parameters=sums.parameters_of(contents),
        formats=sums.formats_of(contents),
        weights=sums.groups_of(contents),
        islands=sums.islands_of(contents),
        parts=sums.parts_of(contents),
        missing=_names(() if comparison is None else comparison.missing),
        unmatched=_names(contents.plain if comparison is None else comparison.unmatched),
        misshapen=_names(() if comparison is None else comparison.misshapen),
        problems=_shortened(contents.problems),
        holes=_holes(holes),
        notes=tuple(notes_on(contents, header)),
        runtime=_runtime(contents, holes),
    )


def _inspect_lora(file: OpenCheckpoint, registry: PublishedFiles) -> Inspection:
    header, lora, holes = file.header, read_lora(file), find_holes(file)
    dims = solve_dims(LORA_VARIANT, header.shapes, fixed={"HD": 128})
    described = {
        tensor.name: (tensor.dtype, tensor.shape) for tensor in describe(LORA_VARIANT, dims=dims).tensors
    }
    same = described == {name: (entry.dtype, entry.shape) for name, entry in header.tensors.items()}
    released = same and dims == load_table(LORA_VARIANT)["dims"]
    variant = LORA_VARIANT if same else None
    published = match_published(header, variant=variant, released_size=released, registry=registry)
    known = next((file for file in registry.with_header(header.sha256)), None)
    elements = sum(math.prod(entry.shape) for entry in header.tensors.values())
    return Inspection(
        path=valid_text(str(file.path)),
        family="lora",
        variant=variant,
        released_size=released,
        tasks=_tasks(published.by_header, registry),
        layout=None,
        depth=None,
        dims=dims if same else {},
        container=_container(header),
        published=published,
        num_parameters=elements,
        formats=sums.dtypes_of(header.tensors),
        weights=(),
        islands=(),
        parts=(
            Part(
                name="deltas",
                num_tensors=len(header.tensors),
                num_parameters=elements,
                size_bytes=_payload(header),
            ),
        ),
        lora=_lora_facts(lora, known),
        missing=_names(()),
        unmatched=_names(lora.unmatched),
        misshapen=_names(()),
        problems=_shortened(lora.problems),
        holes=_holes(holes),
        notes=tuple(notes_on_lora(lora, header)),
        runtime=capability.lora_use(lora, hollow=bool(holes)),
    )


def _container(header: Header) -> Container:
    return Container(
        size_bytes=header.size_bytes,
        header_sha256=header.sha256,
        header_bytes=header.payload_offset - 8,
        keyset_md5=keyset_md5(header.shapes),
        num_tensors=len(header.tensors),
        trailing_bytes=header.trailing_bytes,
        metadata={key[:VALUE_CHARACTERS_MAX]: _cut(value) for key, value in header.metadata.items()},
    )


def _cut(value: str) -> str:
    more = len(value) - VALUE_CHARACTERS_MAX
    return value if more <= 0 else f"{value[:VALUE_CHARACTERS_MAX]}... ({more:,} characters more)"


def _payload(header: Header) -> int:
    return header.size_bytes - header.payload_offset - header.trailing_bytes


def _layout(contents: Contents) -> str | None:
    recognised = contents.recognised
    if recognised is None:
        return None
    plain_names = recognised.layout == "comfyui" and not contents.layers
    if recognised.depth == "full" and plain_names:
        return "comfyui or original"
    if recognised.family == "video_vae" and plain_names and "latents_mean" not in contents.plain:
        return "original"
    return recognised.layout


def _tasks(by_header: Sequence[str], registry: PublishedFiles) -> tuple[TransformerTask, ...]:
    """Return the tasks of the published files with this header; both where there is none."""
    files = [registry.named(name) for name in by_header]
    tasks = {file.task for file in files if file is not None and file.task is not None}
    return tuple(task for task in BOTH_TASKS if task in tasks) or BOTH_TASKS


def _lora_facts(lora: FoundLora, known: PublishedFile | None) -> LoraFacts:
    return LoraFacts(
        dialect=" and ".join(lora.dialects) or "unknown",
        num_modules=len(lora.ranks),
        ranks=lora.rank_counts,
        alphas=lora.alpha_counts,
        targets=lora.targets,
        adaln_width=lora.adaln_width,
        other_deltas=_names(lora.others),
        steps=None if known is None else known.steps,
        shift_video=None if known is None else known.shift_video,
        shift_audio=None if known is None else known.shift_audio,
    )


def _holes(holes: FoundHoles) -> Holes | None:
    if not holes:
        return None
    return Holes(size_bytes=holes.bytes, tensors=_names(holes.tensors), num_zero_samples=holes.zero_samples)


def _runtime(contents: Contents, holes: FoundHoles) -> RuntimeUse:
    comparison = contents.comparison
    fits = comparison is not None and not (
        comparison.missing
        or comparison.unmatched
        or comparison.misshapen
        or comparison.beyond
        or contents.problems
    )
    return capability.model_use(
        family=None if contents.recognised is None else contents.recognised.family,
        layout=None if contents.recognised is None else contents.recognised.layout,
        packed={layer.marker.format for layer in contents.layers if layer.marker is not None},
        fits=fits,
        hollow=bool(holes),
    )


def _names(names: Iterable[str]) -> NameList:
    found = [shortened(name, 200) for name in sorted(names)]
    return NameList(count=len(found), names=tuple(found[:LISTED_MAX]))


def _shortened(problems: Sequence[str]) -> tuple[str, ...]:
    rest = len(problems) - PROBLEMS_MAX
    return (*problems[:PROBLEMS_MAX], *([f"{rest} more"] if rest > 0 else []))
