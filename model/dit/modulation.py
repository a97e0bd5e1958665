"""Adaptive norm: per-timestep shift, scale and gate, picked per row.

The tables have one row per (timestep, modality): they are tiny, and every row of the sequence picks one.

Shapes: S packed rows, D hidden, M distinct timesteps, E width of the AdaLN input.
"""

import torch
from torch import Tensor, nn

from model.packing import Tag

NUM_MODALITIES = len(Tag)


class AdaLNProjection(nn.Module):
    """Linear from the time embedding to modulation tables.

    Output features are ordered (modality, part, channel), so a table's row is `timestep * modalities + tag`.
    """

    def __init__(
        self, embed_dim: int, hidden_size: int, *, parts: int, modalities: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.parts, self.modalities = parts, modalities
        self.linear = nn.Linear(embed_dim, modalities * parts * hidden_size, dtype=dtype)

    def forward(self, time: Tensor) -> tuple[Tensor, ...]:
        """Return `parts` tables, each [M × modalities, D], from [M, E]."""
        return self.linear(time).unflatten(-1, (self.modalities, self.parts, -1)).flatten(0, 1).unbind(1)


def modulate(x: Tensor, *, shift: Tensor, scale: Tensor, row: Tensor) -> Tensor:
    """Return x * (1 + scale) + shift, each row of x [S, D] with its own row of the tables."""
    return x * (1 + scale)[row] + shift[row]


def gated_add(x: Tensor, branch: Tensor, *, gate: Tensor, row: Tensor) -> Tensor:
    """Return x + gate * branch, rounded once; the gate is raw, neither 1 + gate nor squashed."""
    return torch.addcmul(x, gate[row], branch)
