"""Rows of a stored weight, taken in another order or put below each other: weight and scales move together.

This is what lies between key layouts: split or fused q, k, v, the order of heads, the halves of a gated MLP.
Columns are never touched, so rotations and blocks stay right. A plain weight is the case without a marker.

Shapes: O rows of the weight without padding.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from model.checkpoints.expressions import round_up
from model.quant.marker import Marker, QuantFormat
from model.quant.nvfp4 import swizzle, unswizzle

Stored = Mapping[str, Tensor]
"""Suffix to tensor of one linear."""
OF_THE_INPUT = frozenset({"pre_quant_scale", "input_scale"})


def take_rows(marker: Marker | None, stored: Stored, rows: Tensor) -> dict[str, Tensor]:
    """Return the stored form of `weight[rows]`; `rows` is int64 and lies on the tensors' device."""
    taken = {
        suffix: tensor if _is_shared(suffix, tensor) else _in_row_order(marker, suffix, tensor)[rows]
        for suffix, tensor in stored.items()
    }
    return _packed(marker, taken)


def concat_rows(
    marker: Marker | None, parts: Sequence[Stored], *, num_rows: Sequence[int]
) -> dict[str, Tensor]:
    """Return the stored form of the parts below each other; part i has `num_rows[i]` rows without padding.

    Parts whose single scales differ get one scale per row. Of their `input_scale`s the largest is kept, which
    clips nothing. Raises ValueError when the parts do not hold the same tensors or scale their input
    differently.
    """
    if any(part.keys() != parts[0].keys() for part in parts):
        raise ValueError("the parts of a fused weight do not consist of the same tensors")
    fused: dict[str, Tensor] = {}
    for suffix, first in parts[0].items():
        tensors = [part[suffix] for part in parts]
        shared = _is_shared(suffix, first)
        alike = shared and all(bool((tensor == first).all()) for tensor in tensors)
        if suffix == "input_scale":
            fused[suffix] = torch.stack([tensor.reshape(()) for tensor in tensors]).amax()
        elif suffix == "pre_quant_scale" and not alike:
            raise ValueError("the parts of a fused weight scale their input differently")
        elif alike:
            fused[suffix] = first
        else:
            pairs = zip(tensors, num_rows, strict=True)
            fused[suffix] = torch.cat([_column(marker, suffix, tensor, count) for tensor, count in pairs])
    return _packed(marker, fused)


def _is_shared(suffix: str, tensor: Tensor) -> bool:
    """Whether all rows share the tensor."""
    return suffix in OF_THE_INPUT or (suffix not in ("weight", "bias") and tensor.numel() == 1)


def _in_row_order(marker: Marker | None, suffix: str, tensor: Tensor) -> Tensor:
    """Undo the tiles of NVFP4's block scales; anything else has row after row already."""
    tiled = marker is not None and marker.format is QuantFormat.NVFP4 and suffix == "weight_scale"
    return unswizzle(tensor.view(torch.uint8)) if tiled else tensor


def _column(marker: Marker | None, suffix: str, tensor: Tensor, count: int) -> Tensor:
    """One part's `count` rows, ready to be put above the next ones."""
    if _is_shared(suffix, tensor):
        return tensor.reshape(1, 1).expand(count, 1)
    return _in_row_order(marker, suffix, tensor)[:count]


def _packed(marker: Marker | None, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put NVFP4's padding and tiles back on."""
    if marker is None or marker.format is not QuantFormat.NVFP4:
        return tensors
    count = tensors["weight"].shape[0]
    padded = round_up(count, 16)
    weight = F.pad(tensors["weight"], (0, 0, 0, padded - count))
    scales = F.pad(tensors["weight_scale"], (0, 0, 0, round_up(padded, 128) - count))
    return {**tensors, "weight": weight, "weight_scale": swizzle(scales).view(torch.float8_e4m3fn)}
