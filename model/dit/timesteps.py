"""Time embedding: an MLP over sinusoids (full layout) or a table of the curve it traces (pruned layout).

Timesteps lie in [0, 1], 1 is clean, and are never multiplied by 1000. Everything here is float32.

Shapes: M distinct timesteps, E width of the AdaLN input, G rows of the table.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MAX_PERIOD = 10_000.0


def sinusoids(timesteps: Tensor, width: int) -> Tensor:
    """Return [cosines | sines], float32 [M, width]; the divisor is the half width, not one less."""
    half = width // 2
    steps = torch.arange(half, dtype=torch.float32, device=timesteps.device)
    angles = timesteps.unsqueeze(-1) * torch.exp(steps * (-math.log(MAX_PERIOD) / half))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def interpolate_curve(timesteps: Tensor, table: Tensor) -> Tensor:
    """Look [M] up in a table [G, E] whose row k stands for t = k / (G - 1), linearly in between: [M, E]."""
    last = table.shape[0] - 1
    place = timesteps.clamp(0.0, 1.0) * last
    below = place.floor().clamp(max=last - 1)  # t = 1 takes the last interval with weight 1
    index = below.to(torch.int64)
    return torch.lerp(table[index], table[index + 1], (place - below).unsqueeze(-1))


class TimeEmbedder(nn.Module):
    """The full layout's MLP. What it returns passes another SiLU before any AdaLN projection."""

    def __init__(self, freq_dim: int, hidden_dim: int, embed_dim: int) -> None:
        super().__init__()
        self.freq_dim = freq_dim
        self.proj_in = nn.Linear(freq_dim, hidden_dim, dtype=torch.float32)
        self.proj_out = nn.Linear(hidden_dim, embed_dim, dtype=torch.float32)

    def forward(self, timesteps: Tensor) -> Tensor:
        return self.proj_out(F.silu(self.proj_in(sinusoids(timesteps, self.freq_dim))))  # [M, E]
