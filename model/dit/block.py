"""DiT block: adaptive-norm attention and SwiGLU over one packed sequence.

Text, audio and video rows share every weight, so a block never asks what a row is: `row` picks its
modulation. Knows nothing about layouts, sigmas or prompts.

Shapes: S packed rows, D hidden, M distinct timesteps.
"""

import torch
from torch import Tensor, nn

from model.attention import AttentionFn
from model.config import TransformerConfig
from model.dit.layers import SelfAttention, SwiGLU
from model.dit.modulation import NUM_MODALITIES, AdaLNProjection, gated_add, modulate


class DiTBlock(nn.Module):
    def __init__(self, config: TransformerConfig, *, dtype: torch.dtype, adaln_dtype: torch.dtype) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps, dtype=dtype)
        self.attn = SelfAttention(config, dtype=dtype)
        self.norm2 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps, dtype=dtype)
        self.mlp = SwiGLU(config, dtype=dtype)
        self.adaln_proj = AdaLNProjection(
            config.time_embed_dim,
            config.hidden_size,
            parts=6,
            modalities=NUM_MODALITIES,
            dtype=adaln_dtype,
            table_dtype=dtype,
        )

    def forward(
        self, x: Tensor, *, modulation: Tensor, row: Tensor, rope: Tensor, attention: AttentionFn
    ) -> Tensor:
        """Return [S, D] from x [S, D], `modulation` [3M, 6, D] and row int64 [S] into its rows."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation.unbind(1)  # each [3M, D]

        h = modulate(self.norm1(x), shift=shift, scale=scale, row=row)
        x = gated_add(x, self.attn(h, attention=attention, rope=rope), gate=gate, row=row)

        h = modulate(self.norm2(x), shift=mlp_shift, scale=mlp_scale, row=row)
        return gated_add(x, self.mlp(h), gate=mlp_gate, row=row)  # [S, D]
