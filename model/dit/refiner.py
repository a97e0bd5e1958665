"""Token refiner: plain pre-norm blocks over the text rows alone, before they are packed.

No timestep, no rotation, no gate: the result holds for all steps of a request, so it is computed once.

Shapes: L text rows, D hidden.
"""

import torch
from torch import Tensor, nn

from model.attention import AttentionFn
from model.config import TransformerConfig
from model.dit.layers import SelfAttention, SwiGLU


class RefinerBlock(nn.Module):
    def __init__(self, config: TransformerConfig, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps, dtype=dtype)
        self.attn = SelfAttention(config, dtype=dtype)
        self.norm2 = nn.RMSNorm(config.hidden_size, eps=config.norm_eps, dtype=dtype)
        self.mlp = SwiGLU(config, dtype=dtype)

    def forward(self, x: Tensor, *, attention: AttentionFn) -> Tensor:
        x = x + self.attn(self.norm1(x), attention=attention)
        return x + self.mlp(self.norm2(x))  # [L, D]


class TokenRefiner(nn.Module):
    def __init__(self, config: TransformerConfig, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            RefinerBlock(config, dtype=dtype) for _ in range(config.num_refiner_layers)
        )
        self.final_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps, dtype=dtype)

    def forward(self, x: Tensor, *, attention: AttentionFn) -> Tensor:
        for block in self.blocks:
            x = block(x, attention=attention)
        return self.final_norm(x)  # [L, D]
