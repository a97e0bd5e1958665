"""`Latents`: the pair of tensors that one generation denoises, and how both halves are treated alike.

One layout everywhere in the runtime, whatever the sources pack: noise, state, velocities and results have it.
Knows no sigmas, no rows and no statistics.

Shapes: T latent frames of lh × lw latents, 24 channels; Ta audio latents per stereo channel, 32 channels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Latents:
    """Video and audio of one generation, or what has one value per latent: noise, velocity, x0."""

    video: Tensor
    """[24, T, lh, lw]."""
    audio: Tensor
    """[2, 32, Ta], left channel first."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the pair with `function` applied to both halves."""
        return type(self)(video=function(self.video), audio=function(self.audio))

    def to(self, target: torch.device | torch.dtype) -> Self:
        """Return the pair on another device or in another dtype."""
        return self.map(lambda half: half.to(target))
