"""Packed weights of a file, found layer by layer: by marker first, else by what lies beside the weight.

A file's name promises nothing, and one file may mix formats, so every module is read by itself. A marker that
cannot be read, or stored tensors that do not fit it, are told as a layer's `problem`, not raised.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from model.checkpoints.header_text import TensorEntry
from model.checkpoints.stored import OLD_SUFFIXES, Markers
from model.quant.marker import Marker, QuantFormat
from model.quant.storage import misfit, stored_tensors

MARKER: Final = "comfy_quant"
NF4_SUFFIXES: Final = (
    "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4",
)  # fmt: skip
COMPANIONS: Final = (
    MARKER, "weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale",
    "scale_weight", "scale_input", "weight_s_rel", "weight_s_channel", "weight_codebook", "weight_correction",
    "weight_zeros", *NF4_SUFFIXES,
)  # fmt: skip
"""Suffixes of tensors that belong to the weight beside them."""
PACKED_DTYPES: Final = frozenset({"U8", "I8", "F8_E4M3", "F8_E5M2", "F4", "F6_E2M3", "F6_E3M2"})
HALVES: Final = frozenset({QuantFormat.NVFP4, QuantFormat.INT4})
"""Formats of two columns a byte."""
EMBEDDINGS: Final = ("embed_tokens", "pos_embed")
Entries = Mapping[str, TensorEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayer:
    """One module whose weight is packed."""

    module: str
    tensors: Mapping[str, TensorEntry]
    """Suffix to tensor, the weight included."""
    marker: Marker | None
    fields: Mapping[str, Any] | None
    """What the marker says, also where this runtime does not know it."""
    problem: str | None
    shape: tuple[int, ...] = field(default=())
    """Logical rows and columns, storage padding included; `Contents.shape_of` knows better."""

    @property
    def format(self) -> str:
        """The format in words; layers of one format and rotation share it."""
        if self.marker is not None:
            rotation = f" convrot {self.marker.group}" if self.marker.group else ""
            return f"{self.marker.format}{rotation}"
        if self.fields is not None:
            return str(self.fields.get("format", "unknown"))[:60]
        if MARKER in self.tensors:
            return "unreadable marker"
        if "weight.absmax" in self.tensors:
            return "nf4 (bitsandbytes)"
        return f"{self.tensors['weight'].dtype} without marker" if "weight" in self.tensors else "no weight"

    @property
    def bytes(self) -> int:
        return sum(entry.end - entry.begin for entry in self.tensors.values())


def split_companion(name: str) -> tuple[str, str] | None:
    """Return module and suffix of a tensor that belongs to a packed weight; None for any other."""
    for suffix in COMPANIONS:
        if name.endswith(f".{suffix}"):
            return name[: -len(suffix) - 1], suffix
    return None


def find_layers(entries: Entries, markers: Markers) -> list[PackedLayer]:
    """Return every module with a packed weight or a marker, in the order of the names.

    Entries and markers have the same names.
    """
    told = {*markers.read, *markers.fields, *markers.faults}
    found: dict[str, dict[str, TensorEntry]] = {module: {} for module in told}
    for name, entry in entries.items():
        split = split_companion(name)
        if split is not None:
            found.setdefault(split[0], {})[split[1]] = entry
    for name, entry in entries.items():
        module, _, suffix = name.rpartition(".")
        if suffix == "weight" and (module in found or entry.dtype in PACKED_DTYPES):
            found.setdefault(module, {})["weight"] = entry
    return [_layer(module, tensors, markers) for module, tensors in sorted(found.items())]


def _layer(module: str, tensors: Entries, markers: Markers) -> PackedLayer:
    fault, problem = markers.faults.get(module), None
    marker = None if fault else markers.read.get(module)
    weight = tensors.get("weight")
    if fault is not None:
        problem = fault.reason
    elif marker is None:
        problem = f"{module}: its weight is packed and nothing says how (no {module}.{MARKER})"
    elif weight is None:
        problem = f"{module}: there is a marker or scale and no weight"
    return PackedLayer(
        module=module,
        tensors=tensors,
        marker=marker,
        fields=markers.fields.get(module),
        problem=problem,
        shape=() if weight is None else logical_shape(marker, weight.shape),
    )


def logical_shape(marker: Marker | None, stored: tuple[int, ...]) -> tuple[int, ...]:
    """Return what a stored weight's shape stands for, with the padding of storage still in it."""
    if marker is not None and marker.format in HALVES and len(stored) == 2:
        return stored[0], stored[1] * 2
    return stored


def storage_faults(layer: PackedLayer, *, shape: tuple[int, int]) -> list[str]:
    """Say in what the stored tensors differ from those of a weight of `shape` in the marker's format."""
    if layer.marker is None:
        return []
    is_embedding = layer.module.rpartition(".")[2] in EMBEDDINGS
    reason = misfit(layer.marker, shape=shape, is_embedding=is_embedding)
    faults = [] if reason is None else [f"{layer.module}: {reason}"]
    forms = stored_tensors(layer.marker, shape=shape)
    tensors = {OLD_SUFFIXES.get(suffix, suffix): entry for suffix, entry in layer.tensors.items()}
    for suffix, form in forms.items():
        entry = tensors.get(suffix)
        if entry is None:
            faults += [] if form.optional else [f"{layer.module}.{suffix} is missing"]
        elif entry.dtype not in form.dtypes or entry.shape not in form.shapes:
            faults.append(
                f"{layer.module}.{suffix} is {entry.dtype} {list(entry.shape)} instead of"
                f" {form.dtypes[0]} {list(form.shapes[0])}"
            )
    strange = sorted(tensors.keys() - forms.keys() - {MARKER})
    return faults + [f"{layer.module}.{suffix} does not belong to {layer.format}" for suffix in strange]


ROLES: Final[Mapping[str, str]] = {
    MARKER: "marker: JSON text that names the format",
    "weight_scale_2": "scale: one for the tensor, a multiplier",
    "input_scale": "scale: of the activations, a multiplier",
    "pre_quant_scale": "scale: one per column, multiplies the activations (AWQ)",
    "scale_weight": "scale: one for the tensor, a multiplier",
    "scale_input": "scale: of the activations, a multiplier",
    "weight_s_rel": "scale: one per group of columns",
    "weight_s_channel": "scale: one per row",
    "weight_codebook": "table of the 16 levels",
    "weight_correction": "correction: one per group of columns and row",
    "weight_zeros": "offset: one per group of columns and row",
    "weight.absmax": "scale: one per 64 values, itself quantised",
    "weight.quant_map": "table of the 16 levels",
    "weight.nested_absmax": "scale: of the scales",
    "weight.nested_quant_map": "table of the scales' levels",
    "weight.quant_state.bitsandbytes__nf4": "marker: JSON text that names the format",
}
_WEIGHTS: Final[Mapping[QuantFormat, str]] = {
    QuantFormat.NVFP4: "packed: two E2M1 a byte, the even column in the high nibble; padded to 16 x 16",
    QuantFormat.INT8: "packed: signed bytes",
    QuantFormat.INT4: "packed: two signed nibbles a byte, the even column in the low one",
    QuantFormat.FP8: "packed: E4M3",
}


def role_of(layer: PackedLayer, suffix: str) -> str:
    """Say in words what one tensor of a packed weight is."""
    if suffix == "weight":
        if layer.marker is None:
            return f"packed: {layer.tensors[suffix].dtype}"
        group = layer.marker.group
        return _WEIGHTS[layer.marker.format] + (f"; columns rotated in groups of {group}" if group else "")
    if suffix == "weight_scale":
        return _scale_role(layer)
    return ROLES[suffix]


def _scale_role(layer: PackedLayer) -> str:
    shape = layer.tensors["weight_scale"].shape
    if layer.marker is not None and layer.marker.format is QuantFormat.NVFP4:
        return "scale: one E4M3 per 16 columns, a multiplier; swizzled in tiles of 128 x 4, padded"
    if shape in ((), (1,)):
        return "scale: one for the tensor, a multiplier"
    if len(shape) == 1 or shape[1:] == (1,):
        return "scale: one per row, a multiplier"
    return "scale: of unknown layout"
