"""A file's tensors sorted out: which weights are packed, which are plain, what the architecture misses.

Works on ComfyUI's names, whatever the file calls them. Of a payload, only the markers' bytes are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from model.checkpoints.architecture import Comparison, Recognised, compare, recognise
from model.checkpoints.descriptions import VARIANTS, describe
from model.checkpoints.header import Header, OpenCheckpoint
from model.checkpoints.header_text import TensorEntry
from model.checkpoints.layers import PackedLayer, find_layers, storage_faults
from model.checkpoints.names import fuse, whole_name, wrapper_prefix
from model.checkpoints.stored import PLAIN_DTYPES, SCALED_FP8, Markers, read_markers
from model.quant.marker import SUFFIX

T = TypeVar("T")

FAMILY_PREFIXES: Final = {
    "transformer": "dit",
    "text_encoder": "te",
    "video_vae": "vae_video",
    "audio_vae": "vae_audio",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What the tensors are. Names are ComfyUI's, `module[q]` a part of what is fused there."""

    recognised: Recognised | None
    comparison: Comparison | None
    layers: tuple[PackedLayer, ...]
    plain: Mapping[str, TensorEntry]
    """Every tensor that belongs to no packed weight."""
    variant: str | None
    problems: tuple[str, ...]

    def shape_of(self, layer: PackedLayer) -> tuple[int, ...]:
        """Return a packed weight's logical shape, without padding where the architecture tells."""
        wanted = None if self.comparison is None else self.comparison.shape_of(f"{layer.module}.weight")
        return layer.shape if wanted is None else wanted


def read_contents(file: OpenCheckpoint) -> Contents:
    """Sort out an open file. Raises CheckpointFileError when its markers cannot be read."""
    header = file.header
    recognised = recognise(header.tensors)
    entries, problems = _own_entries(header.tensors, recognised)
    markers = _own_markers(read_markers(file), header, recognised)
    problems += [refusal.reason for refusal in markers.refusals]
    layers = find_layers(entries, markers)
    packed = {f"{layer.module}.{suffix}" for layer in layers for suffix in layer.tensors}
    plain = {name: entry for name, entry in entries.items() if name not in packed}
    problems += [layer.problem for layer in layers if layer.problem is not None]
    comparison, variant = None, None
    if recognised is not None:
        weights = {f"{layer.module}.weight": layer.shape for layer in layers if "weight" in layer.tensors}
        forms = {name: entry for name, entry in plain.items() if name != SCALED_FP8}  # read with the markers
        shapes = fuse({name: entry.shape for name, entry in forms.items()} | weights)
        comparison = compare(recognised, shapes, packed={whole_name(name) for name in weights})
        problems += _layer_faults(layers, comparison)
        problems += [
            f"{name} is {entry.dtype} instead of {' or '.join(PLAIN_DTYPES)}"
            for name, entry in forms.items()
            if entry.dtype not in PLAIN_DTYPES and comparison.shape_of(name) is not None
        ]
        variant = _variant(recognised, comparison, entries, markers.texts)
    return Contents(
        recognised=recognised,
        comparison=comparison,
        layers=tuple(layers),
        plain=plain,
        variant=variant,
        problems=tuple(problems),
    )


def _own_entries(
    tensors: Mapping[str, TensorEntry], recognised: Recognised | None
) -> tuple[dict[str, TensorEntry], list[str]]:
    """Return tensors under ComfyUI's names, and names that two of them share."""
    entries: dict[str, TensorEntry] = {}
    stored_names: dict[str, str] = {}
    clashes = []
    for stored, entry in tensors.items():
        own = stored if recognised is None else recognised.own_name(stored)
        if own in entries:
            clashes.append(f"{stored} and {stored_names[own]} are both {own}")
            continue
        entries[own], stored_names[own] = entry, stored
    return entries, clashes


def _own_markers(markers: Markers, header: Header, recognised: Recognised | None) -> Markers:
    """Return the markers under ComfyUI's names; those of a file that is not recognised under its own."""
    prefix = wrapper_prefix(header.tensors)

    def own(found: Mapping[str, T]) -> dict[str, T]:
        return {_own_module(module, prefix, recognised): value for module, value in found.items()}

    return Markers(
        read=own(markers.read),
        fields=own(markers.fields),
        texts=own(markers.texts),
        faults=own(markers.faults),
        refusals=markers.refusals,
    )


def _own_module(module: str, prefix: str, recognised: Recognised | None) -> str:
    if recognised is None:
        return prefix + module
    return recognised.own_name(f"{module}.").removesuffix(".")


def _layer_faults(layers: list[PackedLayer], comparison: Comparison) -> list[str]:
    faults = []
    for layer in layers:
        shape = comparison.shape_of(f"{layer.module}.weight")
        if shape is None or "weight" not in layer.tensors:
            continue
        if len(shape) != 2:
            faults.append(f"{layer.module}: a weight of shape {list(shape)} cannot be packed")
        else:
            faults += storage_faults(layer, shape=(shape[0], shape[1]))
    return faults


def _variant(
    recognised: Recognised,
    comparison: Comparison,
    entries: Mapping[str, TensorEntry],
    texts: Mapping[str, bytes],
) -> str | None:
    """Return the described variant that has exactly these names, dtypes, shapes and markers."""
    found = {
        name: (entry.dtype, entry.shape, texts.get(name.removesuffix(SUFFIX)))
        for name, entry in entries.items()
    }
    family = FAMILY_PREFIXES[recognised.family]
    depth = recognised.depth
    for variant in VARIANTS:
        if variant.startswith(f"{family}_{depth}" if depth else family):
            tensors = describe(variant, dims=comparison.description.dims).tensors
            if found == {tensor.name: (tensor.dtype, tensor.shape, tensor.marker) for tensor in tensors}:
                return variant
    return None
