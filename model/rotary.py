"""Rotary frequencies, computed as every reference does: in float32."""

import torch
from torch import Tensor


def inverse_frequencies(num: int, theta: float) -> Tensor:
    """Return theta^(-i/n) for i < n, float32 [n].

    Float32 throughout: a float64 computation cast down differs from the shipped tensors in the last bit.
    """
    return 1.0 / theta ** (torch.arange(0, 2 * num, 2, dtype=torch.float32) / (2 * num))
