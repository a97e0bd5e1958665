"""Adversarial twins: a tiny file with one fault that a reader must notice, by values if no header tells it.

Faults of order keep every name, shape and dtype; the others are what a careless writer leaves.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save
from torch import Tensor

from model.checkpoints.descriptions import HeaderDescription
from model.quant.marker import QuantFormat, parse_marker
from model.quant.nvfp4 import unswizzle
from model.quant.rows import take_rows
from model.synthetic.twins import Twin
from model.synthetic.values import Values
from model.synthetic.writer import METADATA, whole_file

TRAILING_BYTES: Final = 65
PADDED_HEADER_BYTES: Final = 2**20
Tensors = Mapping[str, Tensor]
Changes = dict[str, Tensor | None]
"""What a fault makes of some tensors; None leaves one out."""


def write_twin(path: Path, description: HeaderDescription, twin: Twin) -> None:
    """Write the tiny file of `description` with one fault.

    Raises OSError, and ValueError for a variant in which the fault has no place.
    """
    values = Values(description)
    tensors = {spec.name: values.tensor(spec).clone() for spec in description.tensors}
    if twin in FAULTS:
        changes = FAULTS[twin](tensors, description)
        if not changes:
            raise ValueError(f"{description.variant} holds nothing that {twin} could spoil")
        changed = {**tensors, **changes}
        tensors = {name: tensor.contiguous() for name, tensor in changed.items() if tensor is not None}
    data = save(tensors, metadata=METADATA)
    if twin is Twin.PADDED_HEADER:
        payload = 8 + int.from_bytes(data[:8], "little")
        header = data[8:payload].ljust(PADDED_HEADER_BYTES)
        data = PADDED_HEADER_BYTES.to_bytes(8, "little") + header + data[payload:]
    if twin is Twin.TRAILING_BYTES:
        data += b"\n" * TRAILING_BYTES
    with whole_file(path) as file:
        file.write(data)


def plain_scales(tensors: Tensors, description: HeaderDescription) -> Changes:
    return {
        name: unswizzle(tensor.view(torch.uint8)).view(tensor.dtype)
        for name, tensor in tensors.items()
        if name.endswith(".weight_scale") and tensor.dtype == torch.float8_e4m3fn
    }


def swapped_nibbles(tensors: Tensors, description: HeaderDescription) -> Changes:
    packed = {QuantFormat.NVFP4, QuantFormat.INT4}
    changes: Changes = {}
    for linear in description.linears:
        if linear.marker is not None and linear.marker["format"] in packed:
            codes = tensors[f"{linear.name}.weight"]
            pairs = codes.view(torch.uint8)
            changes[f"{linear.name}.weight"] = (pairs << 4 | pairs >> 4).view(codes.dtype)
    return changes


def interleaved_qkv(tensors: Tensors, description: HeaderDescription) -> Changes:
    changes: Changes = {}
    for linear in description.linears:
        if not linear.name.endswith(".qkv_proj"):
            continue
        prefix = f"{linear.name}."
        stored = {
            name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
        }
        text = stored.pop("comfy_quant", None)
        marker = text if text is None else parse_marker(bytes(text.tolist()), name=prefix, source=Path())
        heads = (3, description.dims["NH"], description.dims["HD"])
        rows = torch.arange(linear.out_features).view(heads).transpose(0, 1).flatten()
        changes |= {prefix + suffix: value for suffix, value in take_rows(marker, stored, rows).items()}
    return changes


def halved_markers(tensors: Tensors, description: HeaderDescription) -> Changes:
    return {name: tensors[name][: len(tensors[name]) // 2] for name in _ending(tensors, ".comfy_quant")}


def dropped_markers(tensors: Tensors, description: HeaderDescription) -> Changes:
    return dict.fromkeys(_ending(tensors, ".comfy_quant")[::2])


def no_global_scale(tensors: Tensors, description: HeaderDescription) -> Changes:
    return dict.fromkeys(_ending(tensors, ".weight_scale_2"))


FAULTS: Final[Mapping[Twin, Callable[[Tensors, HeaderDescription], Changes]]] = {
    Twin.PLAIN_SCALES: plain_scales,
    Twin.SWAPPED_NIBBLES: swapped_nibbles,
    Twin.INTERLEAVED_QKV: interleaved_qkv,
    Twin.HALVED_MARKERS: halved_markers,
    Twin.DROPPED_MARKERS: dropped_markers,
    Twin.NO_GLOBAL_SCALE: no_global_scale,
}
"""The other twins differ in bytes around the tensors."""


def _ending(tensors: Tensors, suffix: str) -> list[str]:
    return [name for name in tensors if name.endswith(suffix)]
