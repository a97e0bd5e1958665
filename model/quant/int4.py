"""INT4 ConvRot: signed nibbles with a float32 scale per row, the columns rotated.

Exact: the codes are rotated back as integers, then multiplied by the scale with one float32 rounding. The
reference scales first, and so adds rounded numbers: 2e-7 apart.
"""

import torch
from torch import Tensor

from model.quant.linear import QuantLinear
from model.quant.rotation import rotate_groups


def unpack_int4(packed: Tensor) -> Tensor:
    """Decode int8 [R, C / 2] to int8 [R, C] in -8..7; the LOW nibble is the even column, unlike NVFP4."""
    return torch.stack(((packed << 4) >> 4, packed >> 4), dim=-1).flatten(-2)


def dequantise_int4(weight: Tensor, weight_scale: Tensor, *, group: int) -> Tensor:
    """Return float32 [O, I] from int8 [O, I / 2] and O scales of any shape."""
    codes = rotate_groups(unpack_int4(weight).to(torch.float32), group)
    return codes.mul_(weight_scale.reshape(-1, 1))


class Int4Linear(QuantLinear):
    """Buffers, as stored:

    - `weight` int8 [O, I / 2]: two codes a byte, two's complement, the low nibble first; columns rotated;
    - `weight_scale` float32 [O] or [O, 1]: a multiplier.
    """

    def dequantise(self) -> Tensor:
        assert self.marker.group is not None  # an INT4 marker always has one
        return dequantise_int4(self.weight, self.weight_scale, group=self.marker.group)
