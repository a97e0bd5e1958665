"""Which dtype every tensor of the transformer has in memory, for whoever loads one.

Float32 whatever the compute dtype: patch projections, time embedder, heads, rotary frequencies, and in the
pruned layout the time table with all AdaLN projections. The rest has the compute dtype. The modules declare
it; this file reads it off them, so there is no second list to keep in step.
"""

import torch

from model.config import TransformerConfig
from model.dit.transformer import H3Transformer


def parameter_dtypes(config: TransformerConfig, compute_dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return name to dtype for every parameter and buffer, without allocating any of them."""
    with torch.device("meta"):
        model = H3Transformer(config, compute_dtype=compute_dtype)
    return {name: tensor.dtype for name, tensor in model.state_dict().items()}
