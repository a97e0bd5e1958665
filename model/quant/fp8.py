"""FP8 (E4M3, finite) with one float32 scale.

Exact: one float32 rounding per weight, the product code · scale.
"""

import torch
from torch import Tensor

from model.quant.linear import QuantLinear


def dequantise_fp8(weight: Tensor, weight_scale: Tensor) -> Tensor:
    """Return float32 [O, I] from float8_e4m3fn [O, I] and a float32 scale [], [1] or [O, 1]."""
    return weight.to(torch.float32).mul_(weight_scale.reshape(-1, 1))


class FP8Linear(QuantLinear):
    """Buffers, as stored:

    - `weight` float8_e4m3fn [O, I];
    - `weight_scale` float32 [], [1] or, for fused matrices that had different ones, [O, 1]: a multiplier;
    - `input_scale` float32 [] (optional): of the activations, for kernels that quantise them; unused here.
      Without one a kernel has no business to invent 1.0: the layer runs as here.
    """

    def dequantise(self) -> Tensor:
        return dequantise_fp8(self.weight, self.weight_scale)
