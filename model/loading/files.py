"""Which file plays which role, in ComfyUI's folder layout.

A role is recognised by tensor names, never by file name: published names repeat across different contents.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from model.checkpoints.header import Header, read_header
from model.checkpoints.names import DIFFUSERS_MARKS, wrapper_prefix
from model.config import TINY
from model.errors import (
    CheckpointAmbiguousError,
    CheckpointFileError,
    CheckpointMissingError,
    EmptyNameError,
    ResidentSetError,
)
from model.loading.resident import SETS_FOLDER, find_set, set_files
from model.lora.cards import registry_of
from model.lora.files import LoraFile, distinct, find_lora
from model.places import is_file, is_folder, is_there
from queue_schemas.names import TransformerTask
from queue_schemas.resident import ResidentSet

FOLDERS: Final[Mapping[str, str]] = {
    "transformer": "diffusion_models",
    "text_encoder": "text_encoders",
    "video_vae": "vae",
    "audio_vae": "vae",
}
OPTIONS: Final[Mapping[str, str]] = {
    "transformer": "--checkpoint",
    "text_encoder": "--text-encoder",
    "video_vae": "--video-vae",
    "audio_vae": "--audio-vae",
}
MARKS: Final[Mapping[str, tuple[str, ...]]] = {
    "transformer": ("video_patch_proj.weight", "audio_patch_proj.weight"),
    "text_encoder": ("visual.deepstack_merger_list.0.norm.weight", "model.layers.0.self_attn.q_proj.weight"),
    "video_vae": ("decoder.transformer_blocks.0.scale1", "post_quant_conv.weight"),
    "audio_vae": ("dec_in_proj.weight", "decoder.conv_pre.weight"),
}
"""Tensor names whose presence makes a file a candidate for a role."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentFiles:
    """The checked headers of the files that make up one resident set."""

    name: str
    transformer: Header
    """The only one, or that of fl2va: t2va runs on either."""
    transformer_task: TransformerTask | None = None
    """What the set says it was trained for; of a file named alone, what is known of the published one."""
    ref2va_transformer: Header | None = None
    """Where a set names one for each task."""
    text_encoder: Header
    video_vae: Header
    audio_vae: Header
    tokenizer_dir: Path | None
    """None: the built-in Qwen vocabulary, or the one of `has_tiny_vocabulary`."""
    loras: tuple[LoraFile, ...] = ()
    """The set's own first, then those that an option named."""

    def headers(self) -> dict[str, Header]:
        second = self.ref2va_transformer
        return {
            **{role: getattr(self, role) for role in FOLDERS},
            **({} if second is None else {"ref2va_transformer": second}),
        }

    @property
    def has_tiny_vocabulary(self) -> bool:
        """Whether no tokenizer is named for a text encoder of random weights that knows bytes alone."""
        rows, *_ = self.text_encoder.shapes.get("model.embed_tokens.weight", (0,))
        is_random = self.text_encoder.metadata.get("weights") == "random"
        return self.tokenizer_dir is None and is_random and rows == TINY.text_encoder.vocab_size


def find_files(
    models_dir: Path | None,
    *,
    checkpoint: str | None = None,
    text_encoder: str | None = None,
    video_vae: str | None = None,
    audio_vae: str | None = None,
    tokenizer_dir: Path | None = None,
    loras: Sequence[str] = (),
) -> ResidentFiles:
    """Find one file per role: the named one, else the only one in the role's folder that holds such a model.

    A name is a path, or a file name below the role's folder with or without `.safetensors`. `checkpoint` may
    also name a resident set, which then names the files. `loras` are `FILE` or `NAME=FILE`. Raises
    EmptyNameError, CheckpointMissingError (which places were looked at), CheckpointAmbiguousError,
    CheckpointFileError, ResidentSetError, LoraMissingError, LoraFileError.
    """
    if models_dir is not None and not is_folder(models_dir):
        fault = "is no folder" if is_there(models_dir) else "does not exist"
        raise CheckpointMissingError(
            "transformer", looked_at=[models_dir], hint=f"this models folder (--models-dir) {fault}"
        )
    named = {
        "transformer": checkpoint,
        "text_encoder": text_encoder,
        "video_vae": video_vae,
        "audio_vae": audio_vae,
    }
    for role, name in named.items():
        if name == "":
            raise EmptyNameError(OPTIONS[role])
    named_loras = [find_lora(text, models_dir) for text in loras]
    resident = find_set(models_dir, checkpoint)
    if resident is not None:
        files = _files_of_set(resident, models_dir, named=named, tokenizer_dir=tokenizer_dir)
        return replace(files, loras=distinct([*files.loras, *named_loras]))
    found = {role: _find(role, models_dir, name) for role, name in named.items()}
    return ResidentFiles(
        name=_resident_name(found["transformer"].path.stem),
        transformer=found["transformer"],
        transformer_task=_published_task(found["transformer"], models_dir),
        text_encoder=found["text_encoder"],
        video_vae=found["video_vae"],
        audio_vae=found["audio_vae"],
        tokenizer_dir=tokenizer_dir or _own_tokenizer(models_dir),
        loras=distinct(named_loras),
    )


def plays(role: str, header: Header) -> bool:
    """Say whether a file holds the model of `role`."""
    prefix = wrapper_prefix(header.tensors)
    layouts = MARKS[role], DIFFUSERS_MARKS.get(role, MARKS[role])
    return any(all(prefix + mark in header.tensors for mark in marks) for marks in layouts)


def _files_of_set(
    resident: tuple[Path, ResidentSet],
    models_dir: Path | None,
    *,
    named: Mapping[str, str | None],
    tokenizer_dir: Path | None,
) -> ResidentFiles:
    """Find what a set names; an option may choose where the set leaves it open, and nowhere else."""
    path, resident_set = resident
    tasks: dict[TransformerTask, str | None] = {
        "fl2va": resident_set.transformer.fl2va,
        "ref2va": resident_set.transformer.ref2va,
    }
    transformers = {
        task: _find("transformer", models_dir, name, beside=path.parent)
        for task, name in tasks.items()
        if name is not None
    }
    task, transformer = next(iter(transformers.items()))
    found = {}
    for role in ("text_encoder", "video_vae", "audio_vae"):
        own, option = getattr(resident_set, role), named[role]
        if own is not None and option is not None:
            raise ResidentSetError(
                path, f"names its {role} itself; leave {OPTIONS[role]} out, or write a set of another name"
            )
        found[role] = _find(role, models_dir, own or option, beside=path.parent if own else None)
    if tokenizer_dir is None and resident_set.tokenizer is not None:
        tokenizer_dir = _tokenizer_of_set(path, resident_set.tokenizer, models_dir)
    return ResidentFiles(
        name=resident_set.name,
        transformer=transformer,
        transformer_task=task,
        ref2va_transformer=transformers["ref2va"] if len(transformers) > 1 else None,
        text_encoder=found["text_encoder"],
        video_vae=found["video_vae"],
        audio_vae=found["audio_vae"],
        tokenizer_dir=tokenizer_dir or _own_tokenizer(models_dir),
        loras=tuple(
            find_lora(f"{own.name}={own.file}", models_dir, beside=path.parent) for own in resident_set.loras
        ),
    )


def _published_task(header: Header, models_dir: Path | None) -> TransformerTask | None:
    """Return what the published file of this name and length was trained for; a header does not tell.

    The length keeps tiny files of random weights, which have published names too, good for every workflow.
    """
    known = registry_of(models_dir).named(header.path.name)
    return known.task if known is not None and known.size_bytes == header.size_bytes else None


def _tokenizer_of_set(path: Path, name: str, models_dir: Path | None) -> Path:
    places = [path.parent / name, *([models_dir / name] if models_dir else [])]
    for place in places:
        if is_file(place / "tokenizer.json"):
            return place
    raise ResidentSetError(path, f"no tokenizer.json in {' or '.join(str(place) for place in places)}")


def _own_tokenizer(models_dir: Path | None) -> Path | None:
    """Return the models folder's own tokenizer, where it has one."""
    folder = models_dir / "tokenizer" if models_dir else None
    return folder if folder is not None and is_file(folder / "tokenizer.json") else None


def _find(role: str, models_dir: Path | None, name: str | None, *, beside: Path | None = None) -> Header:
    """Find a role's file; a relative name counts from the working folder, or from `beside` instead."""
    folder = models_dir / FOLDERS[role] if models_dir else None
    if name is not None:
        places = [Path(name) if beside is None else beside / name]
        if folder is not None:
            places += [folder / name, folder / f"{name}.safetensors"]
        chosen = next((place for place in places if is_file(place)), None)
        if chosen is None:
            odd = next((place for place in places if is_there(place) and not is_folder(place)), None)
            if odd is not None:
                raise CheckpointFileError(odd, "is no regular file; name a .safetensors file")
            raise CheckpointMissingError(role, looked_at=places, hint=_present(role, models_dir))
        header = read_header(chosen)
        if not plays(role, header):
            raise CheckpointFileError(
                chosen, f"holds no H3 {role} (tensors {', '.join(MARKS[role])} are not there)"
            )
        return _told(header)
    if folder is None or not is_folder(folder):
        absent = f"there is no such folder in {models_dir}; " if models_dir is not None else ""
        raise CheckpointMissingError(
            role,
            looked_at=[folder] if folder is not None else [Path(FOLDERS[role])],
            hint=f"{absent}set H3_MODELS_DIR or --models-dir, or name it with {OPTIONS[role]}",
        )
    return _told(_only_candidate(role, folder))


def _told(header: Header) -> Header:
    if header.trailing_bytes:
        log.warning("%s: %d bytes behind its last tensor are ignored", header.path, header.trailing_bytes)
    return header


def _present(role: str, models_dir: Path | None) -> str:
    """Say which names would have been understood."""
    if models_dir is None:
        return "no models folder is set (H3_MODELS_DIR, --models-dir)"
    folder = models_dir / FOLDERS[role]
    candidates, _ = _candidates(role, folder)
    names = [str(header.path.relative_to(folder).with_suffix("")) for header in candidates]
    sets = list(set_files(models_dir)) if role == "transformer" else []
    there = ", ".join(names) or f"no {role} file"
    return f"in {folder}: {there}" + (f"; in {SETS_FOLDER}: {', '.join(sets)}" if sets else "")


def _candidates(role: str, folder: Path) -> tuple[list[Header], list[CheckpointFileError]]:
    """The files in `folder` that play `role`, and those that cannot be read.

    Other models' files, common in ComfyUI, are passed over.
    """
    candidates, faults = [], []
    for path in sorted(folder.rglob("*.safetensors")):
        try:
            header = read_header(path)
        except CheckpointFileError as error:
            faults.append(error)
            continue
        if plays(role, header):
            candidates.append(header)
    return candidates, faults


def _only_candidate(role: str, folder: Path) -> Header:
    candidates, faults = _candidates(role, folder)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = [str(header.path.relative_to(folder)) for header in candidates]
        raise CheckpointAmbiguousError(role, folder=folder, names=names, option=OPTIONS[role])
    if faults:
        raise faults[0]
    looked_at = sorted(folder.rglob("*.safetensors")) or [folder]
    raise CheckpointMissingError(
        role, looked_at=looked_at, hint=f"put the file there or name it with {OPTIONS[role]}"
    )


def _resident_name(stem: str) -> str:
    cleaned = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in stem)
    return cleaned.lstrip("._-")[:100] or "checkpoint"
