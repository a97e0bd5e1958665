"""A file's tensors sorted out: which weights are packed, which are plain, what the architecture misses.

Works on ComfyUI's names, whatever the file calls them. Of a payload, only the markers' bytes are read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from model.checkpoints.architecture import Comparison, Recognised, compare, fuse, recognise, whole_name
from model.checkpoints.descriptions import VARIANTS, describe
from model.checkpoints.header import CheckpointFile
from model.checkpoints.header_text import TensorEntry
from model.checkpoints.layers import MARKER, PackedLayer, find_layers, storage_faults
from model.quant.marker import MARKER_BYTES_MAX, METADATA_KEY

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


def read_contents(file: CheckpointFile) -> Contents:
    """Sort out an open file. Raises CheckpointFileError when its markers cannot be read."""
    header = file.header
    recognised = recognise(header.tensors)
    entries, stored_names, problems = _own_entries(header.tensors, recognised)
    texts = _marker_texts(file, entries, stored_names)
    described, reason = _described(header.metadata, recognised)
    problems += reason
    layers = find_layers(entries, marker_texts=texts, described=described, source=file.path)
    packed = {f"{layer.module}.{suffix}" for layer in layers for suffix in layer.tensors}
    plain = {name: entry for name, entry in entries.items() if name not in packed}
    problems += [layer.problem for layer in layers if layer.problem is not None]
    comparison, variant = None, None
    if recognised is not None:
        weights = {f"{layer.module}.weight": layer.shape for layer in layers if "weight" in layer.tensors}
        shapes = fuse({name: entry.shape for name, entry in plain.items()} | weights)
        comparison = compare(recognised, shapes, packed={whole_name(name) for name in weights})
        problems += _layer_faults(layers, comparison)
        variant = _variant(recognised, comparison, entries, texts)
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
) -> tuple[dict[str, TensorEntry], dict[str, str], list[str]]:
    """Return tensors under ComfyUI's names, what the file calls them, and names that two of them share."""
    entries: dict[str, TensorEntry] = {}
    stored_names: dict[str, str] = {}
    clashes = []
    for stored, entry in tensors.items():
        own = stored if recognised is None else recognised.own_name(stored)
        if own in entries:
            clashes.append(f"{stored} and {stored_names[own]} are both {own}")
            continue
        entries[own], stored_names[own] = entry, stored
    return entries, stored_names, clashes


def _marker_texts(
    file: CheckpointFile, entries: Mapping[str, TensorEntry], stored_names: Mapping[str, str]
) -> dict[str, bytes]:
    """Read every marker that is a short row of bytes, in the order of the file."""
    markers = [
        (entry.begin, own)
        for own, entry in entries.items()
        if own.endswith(f".{MARKER}")
        and entry.dtype == "U8"
        and len(entry.shape) == 1
        and entry.shape[0] <= MARKER_BYTES_MAX
    ]
    return {own: file.read_tensor(stored_names[own]) for _, own in sorted(markers)}


def _described(
    metadata: Mapping[str, str], recognised: Recognised | None
) -> tuple[Mapping[str, Any], list[str]]:
    """Return the markers that stand in the metadata, by module, and what is wrong with that text."""
    if METADATA_KEY not in metadata:
        return {}, []
    try:
        layers = json.loads(metadata[METADATA_KEY])["layers"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return {}, [f"metadata {METADATA_KEY} is no JSON object with layers"]
    if not isinstance(layers, dict):
        return {}, [f"metadata {METADATA_KEY} is no JSON object with layers"]
    if recognised is None:
        return layers, []
    return {recognised.own_name(f"{name}.").removesuffix("."): fields for name, fields in layers.items()}, []


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
    found = {name: (entry.dtype, entry.shape, texts.get(name)) for name, entry in entries.items()}
    family = FAMILY_PREFIXES[recognised.family]
    depth = recognised.base.split("_")[1] if family == "dit" else ""
    for variant in VARIANTS:
        if variant.startswith(f"{family}_{depth}" if depth else family):
            tensors = describe(variant, dims=comparison.description.dims).tensors
            if found == {tensor.name: (tensor.dtype, tensor.shape, tensor.marker) for tensor in tensors}:
                return variant
    return None
