"""What a file stores, module by module: tensors under this project's names, markers read and taken out.

Markers have three carriers, as in ComfyUI: a `comfy_quant` tensor beside each weight, one metadata entry for
all layers, or the older FP8 scheme of a `scaled_fp8` tensor with `scale_weight` and `scale_input`.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from model.checkpoints.header import Header, OpenCheckpoint
from model.checkpoints.header_text import TensorEntry
from model.checkpoints.names import PART, fuse, wrapper_prefix
from model.errors import CheckpointFileError
from model.quant.marker import (
    MARKER_BYTES_MAX,
    SUFFIX,
    Marker,
    QuantFormat,
    marker_from_fields,
    metadata_layers,
    parse_marker,
)
from model.shapes import Shape

OwnName = Callable[[str], str]
"""Stored name without a wrapper's prefix to ours; `module[q].weight` is one of several that are one here."""
SCALED_FP8: Final = "scaled_fp8"
"""A tensor whose presence says that the file's FP8 weights are in the older scheme."""
OLD_SUFFIXES: Final = {"scale_weight": "weight_scale", "scale_input": "input_scale"}
PLAIN_DTYPES: Final = ("BF16", "F16", "F32")
"""Of tensors that belong to no packed weight."""


@dataclass(slots=True)
class StoredModule:
    """The tensors of one module, or of one of several that are fused in it."""

    name: str
    """As the file has it, without a wrapper's prefix."""
    tensors: dict[str, tuple[str, TensorEntry]] = field(default_factory=dict)
    """Suffix to the tensor's full name in the file and its entry."""
    marker: Marker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A whole file."""

    modules: Mapping[str, Mapping[str, StoredModule]]
    """Our module to part (one of "q", "k", "v", or "" for the whole) to what is stored."""
    clashes: tuple[str, ...] = ()
    """Names under which something is stored that another name stores too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Markers:
    """What a file says of how its weights are stored; by module, as the file calls it, without a wrapper."""

    read: Mapping[str, Marker]
    fields: Mapping[str, Mapping[str, Any]]
    """What the JSON texts say, also where this runtime does not know it."""
    texts: Mapping[str, bytes]
    """The content of each marker tensor of a plausible length."""
    faults: Mapping[str, CheckpointFileError]
    """Why a marker is not read."""
    refusals: Sequence[CheckpointFileError]
    """What is wrong with all of them."""


def own_shapes(header: Header, *, own_name: OwnName) -> dict[str, Shape]:
    """Return every tensor's stored shape by our name; parts of one weight are put together."""
    prefix = wrapper_prefix(header.tensors)
    return fuse({own_name(name.removeprefix(prefix)): entry.shape for name, entry in header.tensors.items()})


def read_stored(header: Header, *, own_name: OwnName) -> Stored:
    """Sort a file's tensors into modules and read its markers. Raises CheckpointFileError."""
    with OpenCheckpoint(header.path, known=header) as file:
        markers = read_markers(file)
    for fault in (*markers.refusals, *markers.faults.values()):
        raise fault
    prefix = wrapper_prefix(header.tensors)
    plain = {name.removeprefix(prefix): (name, entry) for name, entry in header.tensors.items()}
    old = plain.pop(SCALED_FP8, None) is not None
    kept = {
        todays_name(name) if old else name: place
        for name, place in plain.items()
        if not name.endswith(SUFFIX)
    }
    return sort_tensors(kept, markers.read, own_name=own_name)


def read_markers(file: OpenCheckpoint) -> Markers:
    """Read what every marker says, from all its carriers; what is wrong with one is kept, not raised.

    Raises CheckpointFileError only when the file itself cannot be read.
    """
    prefix = wrapper_prefix(file.header.tensors)
    plain = {name.removeprefix(prefix): entry for name, entry in file.header.tensors.items()}
    read: dict[str, Marker] = {}
    fields: dict[str, Mapping[str, Any]] = {}
    texts: dict[str, bytes] = {}
    faults: dict[str, CheckpointFileError] = {}
    refusals: list[CheckpointFileError] = []

    def keep(module: str, parse: Callable[[], Marker]) -> None:
        try:
            marker = parse()
            if read.setdefault(module, marker) != marker:
                raise CheckpointFileError(
                    file.path, f"marker {module}{SUFFIX} and the header's metadata do not agree"
                )
        except CheckpointFileError as error:
            faults[module] = error

    try:
        described = metadata_layers(file.header.metadata, source=file.path)
    except CheckpointFileError as error:
        described = {}
        refusals.append(error)
    for name, value in described.items():
        module = name.removeprefix(prefix)
        fields[module] = value if isinstance(value, dict) else {}
        keep(module, functools.partial(marker_from_fields, value, name=module + SUFFIX, source=file.path))
    try:
        for module, marker in _scaled_fp8(plain, source=file.path).items():
            keep(module, functools.partial(_same, marker))
    except CheckpointFileError as error:
        refusals.append(error)
    for name in sorted(filter(_is_marker, plain), key=lambda name: plain[name].begin):
        module = name.removesuffix(SUFFIX)
        try:
            texts[module] = _text(file, prefix + name, plain[name])
        except CheckpointFileError as error:
            faults[module] = error
            continue
        shown = _shown(texts[module])
        if shown is not None:
            fields[module] = shown
        keep(module, functools.partial(parse_marker, texts[module], name=prefix + name, source=file.path))
    return Markers(read=read, fields=fields, texts=texts, faults=faults, refusals=refusals)


def todays_name(name: str) -> str:
    """Return the name of a scale of the older FP8 scheme in today's; any other as it is."""
    module, _, suffix = name.rpartition(".")
    return f"{module}.{OLD_SUFFIXES[suffix]}" if suffix in OLD_SUFFIXES else name


def sort_tensors(
    tensors: Mapping[str, tuple[str, TensorEntry]], markers: Mapping[str, Marker], *, own_name: OwnName
) -> Stored:
    """Group tensors by our modules; `tensors` and `markers` have the file's names without a prefix."""
    modules: dict[str, dict[str, StoredModule]] = {}
    seen: dict[str, str] = {}
    clashes: set[str] = set()

    def stored(name: str) -> StoredModule:
        own = own_name(f"{name}.weight").rpartition(".")[0] if name else ""
        found = PART.search(own)
        parts = modules.setdefault(PART.sub("", own), {})
        return parts.setdefault(found[1] if found else "", StoredModule(name))

    for name, place in tensors.items():
        module, _, suffix = name.rpartition(".")
        own = own_name(name)
        if own in seen:
            clashes |= {name, seen[own]}
            continue
        seen[own] = name
        stored(module).tensors[suffix] = place
    for module, marker in markers.items():
        stored(module).marker = marker
    return Stored(modules=modules, clashes=tuple(sorted(clashes)))


def _is_marker(name: str) -> bool:
    return name.endswith(SUFFIX)


def _same(marker: Marker) -> Marker:
    return marker


def _text(file: OpenCheckpoint, name: str, entry: TensorEntry) -> bytes:
    if entry.dtype != "U8" or len(entry.shape) != 1:
        raise CheckpointFileError(
            file.path, f"marker {name} is {entry.dtype} {list(entry.shape)}, not text in one row of U8"
        )
    if entry.end - entry.begin > MARKER_BYTES_MAX:
        raise CheckpointFileError(
            file.path, f"marker {name} has {entry.end - entry.begin:,} bytes; real ones have under 100"
        )
    return file.read_tensor(name)


def _shown(text: bytes) -> Mapping[str, Any] | None:
    """Return what a marker's text says, for showing only."""
    try:
        fields = json.loads(text.rstrip(b"\0"))
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _scaled_fp8(entries: Mapping[str, TensorEntry], *, source: Path) -> dict[str, Marker]:
    """Return the markers for which the older FP8 scheme stands. Raises CheckpointFileError."""
    sign = entries.get(SCALED_FP8)
    if sign is None:
        return {}
    if sign.dtype not in ("F8_E4M3", "F32"):
        raise CheckpointFileError(source, f"{SCALED_FP8} is {sign.dtype}; only E4M3 is decoded here")
    old = [name for name in entries if todays_name(name) != name]
    for name in old:
        if todays_name(name) in entries:
            raise CheckpointFileError(source, f"{name} and {todays_name(name)} say the same")
    marker = Marker(format=QuantFormat.FP8, full_precision=sign.shape == (2,))
    return {name.rpartition(".")[0]: marker for name in old}
