"""Adaptive norm: per-timestep shift, scale and gate, picked per row.

The tables have one row per (timestep, modality): they are tiny, and every row of the sequence picks one. They
follow from the timesteps alone, so a schedule's are computed once, before its first step.

Shapes: S packed rows, D hidden, M distinct timesteps of one evaluation, E width of the AdaLN input.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.packing import Tag
from model.quant.linear import decoded

NUM_MODALITIES = len(Tag)


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulation:
    """What AdaLN tells every layer in one evaluation: the same numbers as if each layer asked for its own."""

    blocks: tuple[Tensor, ...]
    """One [3M, 6, D] for each block, of the compute dtype."""
    final: Tensor
    """[M, 2, D]: in float32 (pruned layout) it lifts the last norm's modulation to float32."""

    @property
    def num_bytes(self) -> int:
        return sum(table.nbytes for table in (*self.blocks, self.final))


class AdaLNProjection(nn.Module):
    """Linear from the time embedding to modulation tables.

    Output features are ordered (modality, part, channel), so a table's row is `timestep * modalities + tag`.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_size: int,
        *,
        parts: int,
        modalities: int,
        dtype: torch.dtype,
        table_dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.parts, self.modalities, self.table_dtype = parts, modalities, table_dtype
        self.linear = nn.Linear(embed_dim, modalities * parts * hidden_size, dtype=dtype)

    def forward(self, times: Sequence[Tensor]) -> list[Tensor]:
        """Return [M × modalities, parts, D] for each [M, E].

        One product for each: a product of all at once would round some of its sums in another way.
        """
        with decoded(self.linear, times[0].dtype):
            features = [self.linear(time).to(self.table_dtype) for time in times]
        return [each.unflatten(-1, (self.modalities, self.parts, -1)).flatten(0, 1) for each in features]


def modulate(x: Tensor, *, shift: Tensor, scale: Tensor, row: Tensor) -> Tensor:
    """Return x * (1 + scale) + shift, each row of x [S, D] with its own row of the tables."""
    return x * (1 + scale)[row] + shift[row]


def gated_add(x: Tensor, branch: Tensor, *, gate: Tensor, row: Tensor) -> Tensor:
    """Return x + gate * branch, rounded once; the gate is raw, neither 1 + gate nor squashed."""
    return torch.addcmul(x, gate[row], branch)
