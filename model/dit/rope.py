"""Rotary embedding over (t, h, w): one frequency vector for all three axes, first 6n of d channels rotated.

The pairs are channel i with i + 3n (split halves, not interleaved). The table is made once per request.

Shapes: S packed rows, H heads, d head dim, n frequencies per axis (16).
"""

import torch
from torch import Tensor, nn

from model.rotary import inverse_frequencies


def rope_table(position_ids: Tensor, inv_freq: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return cosines and sines of every row's angles, [2, S, 3n] of `dtype` on `inv_freq`'s device.

    `position_ids` is float64 [S, 3]; it is cast to float32 before it meets the frequencies.
    """
    positions = position_ids.to(torch.float32).to(inv_freq.device)
    angles = (positions.unsqueeze(-1) * inv_freq).flatten(1)  # [S, 3n], t then h then w
    return torch.stack((angles.cos(), angles.sin())).to(dtype)


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate [S, H, d] by the table [2, S, 3n]; channels from 6n on pass through."""
    cos, sin = rope.unsqueeze(2).unbind(0)  # each [S, 1, 3n]
    half = cos.shape[-1]
    a, b, rest = x.split((half, half, x.shape[-1] - 2 * half), dim=-1)
    turned = torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)
    return torch.cat((*turned, rest), dim=-1)


class RopeFrequencies(nn.Module):
    """Holds the frequencies as the checkpoint does: `rope.inv_freq`, float32 [n]."""

    inv_freq: Tensor

    def __init__(self, num: int, theta: float) -> None:
        super().__init__()
        self.register_buffer("inv_freq", inverse_frequencies(num, theta))
