"""Which dtype every tensor of the transformer has in memory, for whoever loads one.

Float32 whatever the compute dtype: patch projections, time embedder, heads, rotary frequencies, and in the
pruned layout the time table with all AdaLN projections. The rest has the compute dtype. The modules declare
it; this file reads it off them, so there is no second list to keep in step.
"""

import torch
from torch import nn

from model.config import TransformerConfig
from model.dit.transformer import H3Transformer


def parameter_dtypes(config: TransformerConfig, compute_dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return name to dtype for every parameter and buffer, without allocating any of them."""
    with torch.device("meta"):
        model = H3Transformer(config, compute_dtype=compute_dtype)
    return {name: tensor.dtype for name, tensor in model.state_dict().items()}


def round_islands(module: H3Transformer) -> None:
    """Round the values of all float32 linears to bfloat16, in place; their dtype and inputs stay float32.

    ComfyUI 783545f loads every linear without a marker so as soon as one layer of the file has one. The time
    table is no linear and stays. Rounded off: up to 9e-4 relative of the patch projections and heads, 1.7e-3
    of the pruned AdaLN.
    """
    for linear in module.modules():
        if isinstance(linear, nn.Linear) and linear.weight.dtype == torch.float32:
            for parameter in linear.parameters():
                parameter.copy_(parameter.to(torch.bfloat16))
