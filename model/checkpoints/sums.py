"""Counts and bytes of a file's tensors: by storage format, by group of packed weights, by island, by part."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from model.checkpoints.contents import Contents
from model.checkpoints.header_text import TensorEntry
from model.checkpoints.layers import EMBEDDINGS, MARKER, PackedLayer, role_of
from model.checkpoints.names import pattern_of
from model.checkpoints.parts import part_of
from queue_schemas.inspections import FormatUse, Island, Part, StoredTensor, WeightGroup

GROUPS_MAX: Final = 200
"""Groups or islands that are listed; an H3 file has at most 60."""


def parameters_of(contents: Contents) -> int:
    """Return how many values the file stands for: packed weights unpacked, scales and markers not counted."""
    packed = sum(
        math.prod(contents.shape_of(layer)) for layer in contents.layers if "weight" in layer.tensors
    )
    return packed + sum(math.prod(entry.shape) for entry in contents.plain.values())


def formats_of(contents: Contents) -> tuple[FormatUse, ...]:
    """Return the storage formats, that of most bytes first."""
    counts: dict[str, dict[str, int]] = {}

    def add(name: str, kind: str, *, parameters: int, size: int) -> None:
        row = counts.setdefault(
            name,
            {"num_linears": 0, "num_embeddings": 0, "num_others": 0, "num_parameters": 0, "size_bytes": 0},
        )
        row[kind] += 1
        row["num_parameters"] += parameters
        row["size_bytes"] += size

    for layer in contents.layers:
        add(
            layer.format,
            _kind(f"{layer.module}.weight", rank=2),
            parameters=math.prod(contents.shape_of(layer)) if "weight" in layer.tensors else 0,
            size=layer.bytes,
        )
    for name, entry in contents.plain.items():
        add(
            entry.dtype,
            _kind(name, rank=len(entry.shape)),
            parameters=math.prod(entry.shape),
            size=entry.end - entry.begin,
        )
    rows = [FormatUse(format=name, **row) for name, row in counts.items()]
    return tuple(sorted(rows, key=lambda row: -row.size_bytes))


def dtypes_of(tensors: Mapping[str, TensorEntry]) -> tuple[FormatUse, ...]:
    """Return the dtypes of tensors that are no weights of a model, such as a LoRA's factors."""
    found: dict[str, list[TensorEntry]] = {}
    for entry in tensors.values():
        found.setdefault(entry.dtype, []).append(entry)
    return tuple(
        FormatUse(
            format=dtype,
            num_linears=0,
            num_embeddings=0,
            num_others=len(entries),
            num_parameters=sum(math.prod(entry.shape) for entry in entries),
            size_bytes=sum(entry.end - entry.begin for entry in entries),
        )
        for dtype, entries in sorted(found.items())
    )


def groups_of(contents: Contents) -> tuple[WeightGroup, ...]:
    """Return the packed weights, those together that are stored alike under one pattern of names."""
    groups: dict[object, list[PackedLayer]] = {}
    for layer in contents.layers:
        forms = tuple(sorted((suffix, entry.dtype, entry.shape) for suffix, entry in layer.tensors.items()))
        marker = None if layer.fields is None else repr(sorted(layer.fields.items()))
        groups.setdefault((pattern_of(layer.module), layer.format, forms, marker), []).append(layer)
    return tuple(_group(layers, contents) for layers in list(groups.values())[:GROUPS_MAX])


def islands_of(contents: Contents) -> tuple[Island, ...]:
    """Return the plain tensors of a file that has packed ones, largest first; none for a plain file."""
    if not contents.layers:
        return ()
    found: dict[tuple[str, str], list[int]] = {}
    for name, entry in contents.plain.items():
        found.setdefault((pattern_of(name), entry.dtype), []).append(entry.end - entry.begin)
    rows = [
        Island(tensors=pattern, dtype=dtype, count=len(sizes), size_bytes=sum(sizes))
        for (pattern, dtype), sizes in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.size_bytes)[:GROUPS_MAX])


def parts_of(contents: Contents) -> tuple[Part, ...]:
    """Return the model's parts, largest first; packed weights count with their scales."""
    family = None if contents.recognised is None else contents.recognised.family
    rows: dict[str, list[int]] = {}

    def add(name: str, *, tensors: int, parameters: int, size: int) -> None:
        row = rows.setdefault(part_of(family, name), [0, 0, 0])
        row[:] = row[0] + tensors, row[1] + parameters, row[2] + size

    for layer in contents.layers:
        add(
            f"{layer.module}.",
            tensors=len(layer.tensors),
            parameters=math.prod(contents.shape_of(layer)) if "weight" in layer.tensors else 0,
            size=layer.bytes,
        )
    for name, entry in contents.plain.items():
        add(name, tensors=1, parameters=math.prod(entry.shape), size=entry.end - entry.begin)
    parts = [
        Part(name=name, num_tensors=t, num_parameters=p, size_bytes=b) for name, (t, p, b) in rows.items()
    ]
    return tuple(sorted(parts, key=lambda part: -part.size_bytes))


def _group(layers: list[PackedLayer], contents: Contents) -> WeightGroup:
    first = layers[0]
    return WeightGroup(
        modules=pattern_of(first.module),
        count=len(layers),
        format=first.format,
        shape=contents.shape_of(first),
        tensors=tuple(_stored(first, first.tensors)),
        marker=None if first.fields is None else dict(first.fields),
    )


def _stored(layer: PackedLayer, tensors: Mapping[str, TensorEntry]) -> Iterable[StoredTensor]:
    for suffix in sorted(tensors, key=lambda suffix: (suffix != "weight", suffix == MARKER, suffix)):
        entry = tensors[suffix]
        yield StoredTensor(suffix=suffix, dtype=entry.dtype, shape=entry.shape, role=role_of(layer, suffix))


def _kind(name: str, *, rank: int) -> str:
    module, _, suffix = name.rpartition(".")
    if suffix != "weight" or rank != 2:
        return "num_others"
    return "num_embeddings" if module.rpartition(".")[2] in EMBEDDINGS else "num_linears"
