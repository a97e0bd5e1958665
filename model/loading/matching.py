"""Matches what a file stores with what a module on `meta` wants: names, dtypes, shapes, quantised or plain.

Strict and whole: everything missing, unexpected or wrong is listed together, before a weight is read.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from model.checkpoints.names import PARTS
from model.checkpoints.stored import PLAIN_DTYPES, Stored, StoredModule
from model.errors import CheckpointMismatchError
from model.quant.marker import Marker
from model.quant.storage import StoredTensor, misfit, stored_tensors
from model.shapes import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One module of ours with what the file has for it."""

    name: str
    parts: Sequence[StoredModule]
    """One, or several whose rows are put below each other."""
    num_rows: int
    """Of each part's weight, without padding."""
    marker: Marker | None
    packed: frozenset[str]
    """Suffixes of the tensors that make up a quantised weight; none for a plain one."""


def match(
    module: nn.Module,
    stored: Stored,
    *,
    source: Path,
    ignored: Sequence[str] = (),
    optional: Collection[str] = (),
    shown: Callable[[str], str] = str,
) -> list[Piece]:
    """Return one piece per module that has tensors. Raises CheckpointMismatchError.

    Modules whose names (ours) begin with one of `ignored` may be in the file; the tensors in `optional` may
    be absent. `shown` gives the name by which a module is missed.
    """
    wanted = _by_module(module)
    missing: list[str] = []
    unexpected = [*stored.clashes]
    wrong: list[str] = []
    for name, found in stored.modules.items():
        if name not in wanted and not f"{name}.".startswith(tuple(ignored)):
            unexpected += [full_name for part in found.values() for full_name in _stored_names(part)]
    pieces = []
    for name, shapes in wanted.items():
        parts, extra = _parts(shown(name), stored.modules.get(name, {}))
        unexpected += [full_name for part in extra for full_name in _stored_names(part)]
        want, problem = _wanted(module, name, shapes, parts)
        wrong += problem
        for part in parts:
            missing += [
                full(part.name, suffix)
                for suffix, form in want.items()
                if suffix not in part.tensors and not form.optional and full(name, suffix) not in optional
            ]
            unexpected += [full(part.name, suffix) for suffix in part.tensors if suffix not in want]
            wrong += _misshapen(part, want)
        pieces.append(_piece(name, shapes, parts, packed=frozenset(want) - shapes.keys() | {"weight"}))
    if missing or unexpected or wrong:
        raise CheckpointMismatchError(
            source, missing=sorted(missing), unexpected=sorted(unexpected), wrong=sorted(wrong)
        )
    return pieces


def full(module: str, suffix: str) -> str:
    return f"{module}.{suffix}" if module else suffix


def _by_module(module: nn.Module) -> dict[str, dict[str, Shape]]:
    found: dict[str, dict[str, Shape]] = {}
    for name, tensor in module.state_dict().items():
        owner, _, suffix = name.rpartition(".")
        found.setdefault(owner, {})[suffix] = tuple(tensor.shape)
    return found


def _parts(
    name: str, found: Mapping[str, StoredModule]
) -> tuple[Sequence[StoredModule], Sequence[StoredModule]]:
    """Return what makes up our module, and what is too much; what is absent is there without tensors."""
    if not found or "" in found:
        return [found.get("", StoredModule(name))], [part for key, part in found.items() if key]
    sibling = next(iter(found.values())).name  # its name but for the last letter is that of all
    return (
        [found.get(key, StoredModule(sibling[:-1] + key)) for key in PARTS],
        [part for key, part in found.items() if key not in PARTS],
    )


def _piece(
    name: str, shapes: Mapping[str, Shape], parts: Sequence[StoredModule], *, packed: frozenset[str]
) -> Piece:
    marker = parts[0].marker
    rows = shapes["weight"][0] // len(parts) if "weight" in shapes else 0
    return Piece(
        name=name, parts=parts, num_rows=rows, marker=marker, packed=packed if marker else frozenset()
    )


def _wanted(
    module: nn.Module, name: str, shapes: Mapping[str, Shape], parts: Sequence[StoredModule]
) -> tuple[dict[str, StoredTensor], list[str]]:
    """Return suffix to form, the same for every part, and what the markers say that cannot be."""
    marker, count = parts[0].marker, len(parts)
    part_shapes = {
        suffix: (shape[0] // count, *shape[1:]) if shape and count > 1 else shape
        for suffix, shape in shapes.items()
    }
    want = {suffix: StoredTensor(PLAIN_DTYPES, (shape,)) for suffix, shape in part_shapes.items()}
    unlike = [part for part in parts if part.marker != marker]
    if unlike:
        return want, [
            f"{part.name}: stored otherwise than {parts[0].name}, with which it is fused" for part in unlike
        ]
    if marker is None:
        return want, []
    owner = module.get_submodule(name)
    reason: str | None = "stands beside no linear"
    if isinstance(owner, nn.Linear | nn.Embedding):
        rows, columns = part_shapes["weight"]
        want |= stored_tensors(marker, shape=(rows, columns))
        reason = misfit(marker, shape=(rows, columns), is_embedding=isinstance(owner, nn.Embedding))
    return want, [f"{part.name}.comfy_quant: {reason}" for part in parts if reason]


def _misshapen(part: StoredModule, want: Mapping[str, StoredTensor]) -> Iterator[str]:
    for suffix, (_, entry) in part.tensors.items():
        form = want.get(suffix)
        if form is None:
            continue
        if entry.shape not in form.shapes:
            shapes = " or ".join(map(str, form.shapes))
            yield f"{full(part.name, suffix)}: {entry.shape} instead of {shapes}"
        elif entry.dtype not in form.dtypes:
            unmarked = " without a comfy_quant marker" if part.marker is None else ""
            yield f"{full(part.name, suffix)}: {entry.dtype}{unmarked} instead of {' or '.join(form.dtypes)}"


def _stored_names(part: StoredModule) -> list[str]:
    names = [full(part.name, suffix) for suffix in part.tensors]
    return names if part.marker is None else [*names, full(part.name, "comfy_quant")]
