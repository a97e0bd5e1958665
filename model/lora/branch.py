"""A linear with LoRAs beside it: y = W x + b + strength · scale · up (down x), for each LoRA that is active.

The weight is never touched, so quantised linears stay as they are, a strength is a number read at each call,
and a LoRA that is off costs nothing. Knows no files and no names of LoRAs: they are numbered.

Shapes: S rows, O and I features, r rank.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

Strengths = tuple[tuple[int, float], ...]
"""Number and strength of LoRAs, in the order in which they are added."""


@dataclass(slots=True)
class Active:
    """Which LoRAs apply now, shared by all linears of one transformer."""

    strengths: Strengths = ()


class Branch(nn.Module):
    """What one LoRA adds to one linear; computes in the linear's own dtype.

    - `down` [r, I] and `up` [O, r]; without `down`, `up` is a whole difference of the weight, [O, I];
    - `bias` [O] (optional): added with the strength alone.
    """

    down: Tensor | None
    up: Tensor | None
    bias: Tensor | None

    def __init__(self, *, down: Tensor | None, up: Tensor | None, bias: Tensor | None, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("down", down, persistent=False)
        self.register_buffer("up", up, persistent=False)
        self.register_buffer("bias", bias, persistent=False)

    def add_to(self, y: Tensor, x: Tensor, *, strength: float) -> None:
        """Add to y [..., O] in place: the product joins its sum before it is rounded, and takes no memory."""
        if self.up is not None:
            inner = x if self.down is None else F.linear(x, self.down)
            rows = inner.reshape(-1, inner.shape[-1])
            y.view(-1, y.shape[-1]).addmm_(rows, self.up.t(), alpha=strength * self.scale)
        if self.bias is not None:
            y.add_(self.bias, alpha=strength)


class LoraLinear(nn.Module):
    """A linear, plain or quantised, and what LoRAs add to it."""

    def __init__(self, base: nn.Module, active: Active) -> None:
        super().__init__()
        self.base, self.active = base, active
        self.branches = nn.ModuleDict()

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., O] from [..., I]."""
        y = self.base(x)
        for number, strength in self.active.strengths:
            key = str(number)
            if strength and key in self.branches:
                branch = self.branches[key]
                assert isinstance(branch, Branch)
                branch.add_to(y, x, strength=strength)
        return y
