"""The two sublayers every block has, in the text refiner and in the main stack: attention and SwiGLU.

Linears are called, never looked into, so a quantised one can take any of their places.

Shapes: S rows, D hidden, H heads, d head dim, F ffn width. H × d is larger than D.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import AttentionFn
from model.config import TransformerConfig
from model.dit.rope import rotate


class Linear(nn.Linear):
    """`nn.Linear` without initial values on `meta`, where they are never seen and 200 of them take 25 ms."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


def alike(make: Callable[[], nn.Module], count: int) -> Iterator[nn.Module]:
    """Yield `count` modules that `make` builds.

    On `meta` it is called once: the others take over its tensors, which have no values and are replaced one
    module at a time, and nothing else. That takes a fifth of the time.
    """
    first = make()
    yield first
    on_meta = all(parameter.is_meta for parameter in first.parameters())
    for _ in range(count - 1):
        yield _twin(first) if on_meta else make()


def _twin(module: nn.Module) -> nn.Module:
    twin = module.__new__(type(module))
    for name, value in vars(module).items():
        twin.__dict__[name] = value.copy() if isinstance(value, dict | set) else value
    for name, child in module._modules.items():
        twin._modules[name] = None if child is None else _twin(child)
    return twin


class SelfAttention(nn.Module):
    """Full attention over all rows, with per-head RMSNorm of q and k before the rotation."""

    def __init__(self, config: TransformerConfig, *, dtype: torch.dtype) -> None:
        super().__init__()
        width = config.attention_dim
        self.num_heads = config.num_heads
        # Rows are [all q | all k | all v], as in ComfyUI's files; the original shards interleave by head.
        self.qkv_proj = Linear(config.hidden_size, 3 * width, bias=False, dtype=dtype)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps, dtype=dtype)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps, dtype=dtype)
        self.out_proj = Linear(width, config.hidden_size, bias=False, dtype=dtype)

    def forward(self, x: Tensor, *, attention: AttentionFn, rope: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, self.num_heads, -1)).unbind(1)  # each [S, H, d]
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        return self.out_proj(attention(q, k, v).flatten(1))  # [S, D]


class SwiGLU(nn.Module):
    """fc2(silu(gate) * up); the first F rows of fc1 are the gate (diffusers stores the halves swapped)."""

    def __init__(self, config: TransformerConfig, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc1 = Linear(config.hidden_size, 2 * config.ffn_dim, bias=False, dtype=dtype)
        self.fc2 = Linear(config.ffn_dim, config.hidden_size, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.fc1(x).chunk(2, dim=-1)  # each [S, F]
        return self.fc2(F.silu(gate) * up)  # [S, D]
