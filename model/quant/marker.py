"""What a `comfy_quant` tensor says: in which format the weight beside it is stored.

A layer is quantised if and only if it has a marker, a U8 tensor of JSON text; each layer is read by its own.
Strict, because a field that is passed over is a wrong film. Imports no torch.
Source: ComfyUI's `comfy/ops.py`, which reads the same fields with the same defaults.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from model.errors import CheckpointFileError

SUFFIX: Final = ".comfy_quant"
METADATA_KEY: Final = "_quantization_metadata"
"""Header metadata that may stand for the markers: `{"format_version": "1.0", "layers": {module: fields}}`."""
MARKER_BYTES_MAX: Final = 4096
"""The longest of a published file has 72."""
GROUPS: Final = frozenset({4, 16, 64, 256, 1024})
"""Sizes for which ComfyUI's rotation matrix exists: powers of four."""


class QuantFormat(StrEnum):
    """Storage formats that this runtime decodes, by the names that ComfyUI gave them."""

    FP8 = "float8_e4m3fn"
    NVFP4 = "nvfp4"
    INT8 = "int8_tensorwise"
    """One scale per row, in spite of the name."""
    INT4 = "convrot_w4a4"


OTHER_FORMATS: Final = frozenset({"float8_e5m2", "mxfp8", "asym_w4a8_int8", "awq_w4a16"})
"""ComfyUI's further formats; no H3 file that was published by its makers uses them."""
_TYPES: Final[Mapping[str, type]] = {
    "format": str,
    "full_precision_matrix_mult": bool,
    "convrot": bool,
    "convrot_groupsize": int,
    "linear_dtype": str,
    "group_size": int,
}
_ALWAYS: Final = frozenset({"format", "full_precision_matrix_mult"})
_OWN: Final[Mapping[QuantFormat, frozenset[str]]] = {
    QuantFormat.FP8: frozenset(),
    QuantFormat.NVFP4: frozenset(),
    QuantFormat.INT8: frozenset({"convrot", "convrot_groupsize"}),
    # `linear_dtype` chooses a kernel's activations and `group_size` is a leftover: neither changes a weight.
    QuantFormat.INT4: frozenset({"convrot", "convrot_groupsize", "linear_dtype", "group_size"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """How one weight is stored."""

    format: QuantFormat
    group: int | None = None
    """Columns that are rotated together (ConvRot); None: the weight is not rotated."""
    full_precision: bool = False
    """The file asks for a matrix product of decoded weights, never of quantised activations."""


def parse_marker(data: bytes, *, name: str, source: Path) -> Marker:
    """Read the content of the tensor `name`; NULs after the text, a C string's end, are passed over.

    Raises CheckpointFileError, naming tensor and file.
    """
    text = data.rstrip(b"\0")
    if not text:
        what = f"{len(data)} bytes of zero, a hole" if data else "empty"
        raise CheckpointFileError(
            source, f"marker {name} is {what}: its download did not finish; fetch the file again"
        )
    if len(text) > MARKER_BYTES_MAX:
        raise CheckpointFileError(source, f"marker {name} has {len(text):,} bytes; real ones have under 100")
    try:
        fields = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointFileError(source, f"marker {name} is no JSON text: {error}") from None
    return marker_from_fields(fields, name=name, source=source)


def metadata_layers(metadata: Mapping[str, str], *, source: Path) -> Mapping[str, Any]:
    """Return module name to fields for a file that keeps its markers in its header; empty for any other.

    Raises CheckpointFileError.
    """
    if METADATA_KEY not in metadata:
        return {}
    try:
        document = json.loads(metadata[METADATA_KEY], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointFileError(source, f"metadata {METADATA_KEY} is no JSON text: {error}") from None
    layers = document.get("layers") if isinstance(document, dict) else None
    if not isinstance(layers, dict) or document.get("format_version", "1.0") != "1.0":
        raise CheckpointFileError(source, f"metadata {METADATA_KEY} is not of version 1.0 with its layers")
    return layers


def marker_from_fields(fields: Any, *, name: str, source: Path) -> Marker:
    """Check a marker's fields, which may partly sit in a nested `params`. Raises CheckpointFileError."""

    def refuse(reason: str) -> CheckpointFileError:
        return CheckpointFileError(source, f"marker {name} {reason}")

    if not isinstance(fields, dict) or not isinstance(fields.get("params", {}), dict):
        raise refuse("is no JSON object of fields")
    nested = fields.get("params", {})
    flat = {key: value for key, value in fields.items() if key != "params"}
    if flat.keys() & nested.keys():
        raise refuse(f"gives {', '.join(sorted(flat.keys() & nested.keys()))} twice")
    flat |= nested
    if "format" not in flat:
        raise refuse("names no format")
    quant_format = _format(flat["format"], refuse)
    for key, value in flat.items():
        if key not in _ALWAYS | _OWN[quant_format]:
            raise refuse(f"has the field {key!r}, which {quant_format} weights do not have here")
        if type(value) is not _TYPES[key]:
            raise refuse(f"has {key} = {value!r}, where {_TYPES[key].__name__} is expected")
    rotated = flat.get("convrot", quant_format is QuantFormat.INT4)
    if quant_format is QuantFormat.INT4 and not rotated:
        raise refuse("says that its convrot_w4a4 weight is not rotated")
    group = flat.get("convrot_groupsize", 256)
    if rotated and group not in GROUPS:
        raise refuse(f"has convrot_groupsize {group}; it must be one of {sorted(GROUPS)}")
    return Marker(
        format=quant_format,
        group=group if rotated else None,
        full_precision=flat.get("full_precision_matrix_mult", False),
    )


def _format(value: Any, refuse: Any) -> QuantFormat:
    if isinstance(value, str) and value in set(QuantFormat):
        return QuantFormat(value)
    known = value in OTHER_FORMATS if isinstance(value, str) else False
    decoded = ", ".join(QuantFormat)
    if known:
        raise refuse(f"names the format {value}, which is not decoded here; use a file of {decoded}, or bf16")
    raise refuse(f"names the unknown format {value!r}; known here are {decoded}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("the same key stands twice")
    return found
