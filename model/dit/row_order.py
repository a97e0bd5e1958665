"""Rows that other layouts store in another order than ours, which no shape can tell.

Ours, as in ComfyUI's files: `qkv_proj` is all of q, then k, then v; `fc1` is the gate, then the value.
diffusers has the halves of `fc1` the other way round. MiniMax' own shards have q, k and v of the first head,
then those of the next, under ComfyUI's names and shapes, so only who made a file can say that it is one.
Sources: the conversion script of diffusers 0.42.1; ComfyUI 783545f.
"""

import torch
from torch import Tensor

from model.checkpoints.names import Layout
from model.config import TransformerConfig


def row_order(module: str, config: TransformerConfig, *, layout: Layout) -> Tensor | None:
    """Return which of the file's rows is each of ours, int64 [rows], or None where they are the same."""
    if layout == "diffusers" and module.endswith("mlp.fc1"):
        return torch.arange(2 * config.ffn_dim).roll(config.ffn_dim)
    if layout == "original" and module.endswith("attn.qkv_proj"):
        rows = torch.arange(3 * config.attention_dim)
        return rows.view(config.num_heads, 3, config.head_dim).transpose(0, 1).flatten()
    return None
