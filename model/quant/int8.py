"""INT8 with a float32 scale per row, the columns rotated (ConvRot) or not; linear and embedding.

Exact: the codes are rotated back as integers, then multiplied by the scale with one float32 rounding. The
reference scales first, and so adds rounded numbers: 2e-7 apart.
"""

import torch
from torch import Tensor, nn

from model.quant.linear import QuantLinear
from model.quant.marker import Marker
from model.quant.rotation import rotate_groups


def dequantise_int8(weight: Tensor, weight_scale: Tensor, *, group: int | None) -> Tensor:
    """Return float32 [O, I] from int8 [O, I] and scales [O, 1], [O], [1] or []; `group` None: not rotated."""
    codes = weight.to(torch.float32)
    turned = codes if group is None else rotate_groups(codes, group)
    return turned.mul_(weight_scale.reshape(-1, 1))


class Int8Linear(QuantLinear):
    """Buffers, as stored:

    - `weight` int8 [O, I], two's complement, no zero point; its columns rotated if the marker says so;
    - `weight_scale` float32 [O, 1] or [O], without rotation also [1] or []: a multiplier.
    """

    def dequantise(self) -> Tensor:
        return dequantise_int8(self.weight, self.weight_scale, group=self.marker.group)


class Int8Embedding(nn.Module):
    """A table of rows stored as in `Int8Linear`; only the rows asked for are decoded, to `dtype`."""

    weight: Tensor
    weight_scale: Tensor

    def __init__(
        self, marker: Marker, *, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.marker, self.dtype = marker, dtype
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", weight_scale)

    def forward(self, ids: Tensor) -> Tensor:
        """Return [..., I] for int64 [...]."""
        wanted = ids.flatten()
        scale = self.weight_scale.reshape(-1, 1)
        if scale.shape[0] > 1:
            scale = scale[wanted]
        rows = dequantise_int8(self.weight[wanted], scale, group=self.marker.group)
        return rows.to(self.dtype).unflatten(0, ids.shape)
