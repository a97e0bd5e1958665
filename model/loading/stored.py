"""What a file stores, module by module: tensors under this project's names, markers read and taken out.

Markers have three carriers, as in ComfyUI: a `comfy_quant` tensor beside each weight, one metadata entry for
all layers, or the older FP8 scheme of a `scaled_fp8` tensor with `scale_weight` and `scale_input`.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from model.checkpoints.header import CheckpointFile, Header
from model.checkpoints.header_text import TensorEntry
from model.checkpoints.names import wrapper_prefix
from model.errors import CheckpointFileError
from model.quant.marker import (
    MARKER_BYTES_MAX,
    SUFFIX,
    Marker,
    QuantFormat,
    markers_from_metadata,
    parse_marker,
)
from model.shapes import Shape

OwnName = Callable[[str], str]
"""Stored name without a wrapper's prefix to ours; `module[q].weight` is one of several that are one here."""
SCALED_FP8: Final = "scaled_fp8"
_OLD_SUFFIXES: Final = {"scale_weight": "weight_scale", "scale_input": "input_scale"}
_PART: Final = re.compile(r"\[(\w+)\]$")


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


def own_shapes(header: Header, *, own_name: OwnName) -> dict[str, Shape]:
    """Return every tensor's stored shape by our name; parts of one weight are put together."""
    prefix = wrapper_prefix(header.tensors)
    found: dict[str, Shape] = {}
    for name, entry in header.tensors.items():
        own, shape = own_name(name.removeprefix(prefix)), entry.shape
        module, _, suffix = own.rpartition(".")
        whole = f"{_PART.sub('', module)}.{suffix}" if module else suffix
        before = found.get(whole)
        found[whole] = (before[0] + shape[0], *shape[1:]) if before and shape else shape
    return found


def read_stored(header: Header, *, own_name: OwnName) -> Stored:
    """Sort a file's tensors into modules and read its markers. Raises CheckpointFileError."""
    prefix = wrapper_prefix(header.tensors)
    plain = {name.removeprefix(prefix): (name, entry) for name, entry in header.tensors.items()}
    carried = markers_from_metadata(header.metadata, source=header.path)
    markers = {module.removeprefix(prefix): marker for module, marker in carried.items()}
    markers |= _scaled_fp8(plain, source=header.path)
    for module, marker in _marker_tensors(plain, header).items():
        if markers.setdefault(module, marker) != marker:
            raise CheckpointFileError(
                header.path, f"marker {module}{SUFFIX} and the header's metadata do not agree"
            )
    return sort_tensors(plain, markers, own_name=own_name)


def sort_tensors(
    tensors: Mapping[str, tuple[str, TensorEntry]], markers: Mapping[str, Marker], *, own_name: OwnName
) -> Stored:
    """Group tensors by our modules; `tensors` and `markers` have the file's names without a prefix."""
    modules: dict[str, dict[str, StoredModule]] = {}
    seen: dict[str, str] = {}
    clashes: set[str] = set()

    def stored(name: str) -> StoredModule:
        own = own_name(f"{name}.weight").rpartition(".")[0] if name else ""
        found = _PART.search(own)
        parts = modules.setdefault(_PART.sub("", own), {})
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


def _marker_tensors(plain: dict[str, tuple[str, TensorEntry]], header: Header) -> dict[str, Marker]:
    """Take the marker tensors out of `plain` and read them."""
    found = {name: plain.pop(name) for name in list(plain) if name.endswith(SUFFIX)}
    if not found:
        return {}
    with CheckpointFile(header.path, known=header) as file:
        return {name.removesuffix(SUFFIX): _marker(file, *place) for name, place in found.items()}


def _marker(file: CheckpointFile, name: str, entry: TensorEntry) -> Marker:
    if entry.dtype != "U8" or len(entry.shape) != 1:
        raise CheckpointFileError(
            file.path, f"marker {name} is {entry.dtype} {list(entry.shape)}, not text in one row of U8"
        )
    if entry.end - entry.begin > MARKER_BYTES_MAX:
        raise CheckpointFileError(
            file.path, f"marker {name} has {entry.end - entry.begin:,} bytes; real ones have under 100"
        )
    return parse_marker(file.read_tensor(name), name=name, source=file.path)


def _scaled_fp8(plain: dict[str, tuple[str, TensorEntry]], *, source: Path) -> dict[str, Marker]:
    """Give the older FP8 scheme's tensors today's names, in `plain`, and return the markers it stands for."""
    if SCALED_FP8 not in plain:
        return {}
    _, sign = plain.pop(SCALED_FP8)
    if sign.dtype not in ("F8_E4M3", "F32"):
        raise CheckpointFileError(source, f"{SCALED_FP8} is {sign.dtype}; only E4M3 is decoded here")
    marker = Marker(format=QuantFormat.FP8, full_precision=sign.shape == (2,))
    markers = {}
    for module, suffix in _old_scales(plain):
        plain[f"{module}.{_OLD_SUFFIXES[suffix]}"] = plain.pop(f"{module}.{suffix}")
        markers[module] = marker
    return markers


def _old_scales(names: Iterable[str]) -> list[tuple[str, str]]:
    parts = [name.rpartition(".") for name in names]
    return [(module, suffix) for module, _, suffix in parts if suffix in _OLD_SUFFIXES]
