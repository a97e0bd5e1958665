"""Rotary positions of the video VAE's decoder: three axes, partial, halves paired.

The one thing to know: coordinates are normalised by the size of the tile at hand, so the table belongs to a
tile's (T, h, w), and another tile size decodes other pixels. Knows nothing about heads or weights.

Shapes: S = T * h * w + suffix tokens, R rotated pairs (three axes, R / 3 frequencies each), D head dim.
Source: diffusers 0.42.1 and ComfyUI, which agree in float32.
"""

import functools
import math

import torch
from torch import Tensor


@functools.lru_cache(maxsize=16)
def rope_table(
    size: tuple[int, int, int], suffix: int, *, rotated: int, theta: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return float32 (cos, sin), each [S, R], for a tile of `size` = (T, h, w) and `suffix` more tokens.

    `rotated` channels of a head are turned, R = rotated / 2; the suffix sits at position 0, where nothing
    turns.
    """
    if rotated % 6:
        raise ValueError(f"{rotated} rotated channels do not split into pairs over three axes")
    # Computed on the CPU: one table on every accelerator.
    frequencies = 1.0 / theta ** torch.arange(0, 1, 6 / rotated, dtype=torch.float32, device="cpu")  # [R / 3]
    axes = [2.0 * (torch.arange(0.5, n, dtype=torch.float32, device="cpu") / n) - 1.0 for n in size]
    positions = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 2)  # [T * h * w, 3]
    positions = torch.cat([positions, positions.new_zeros(suffix, 3)])  # [S, 3]
    angles = (2.0 * math.pi * positions[:, :, None] * frequencies).flatten(1)  # [S, R], axes in order t, h, w
    return angles.cos().to(device), angles.sin().to(device)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn channel j with channel j + R, j < R, in `x` [..., S, D]; channels from 2R on pass through."""
    pairs = cos.shape[-1]
    first, second, rest = x.split([pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
