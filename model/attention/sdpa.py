"""Attention by torch's `scaled_dot_product_attention`: exact, on every device; torch picks the kernel.

Shapes: S rows, H heads, d head dim.
"""

import torch.nn.functional as F
from torch import Tensor


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend over all rows; each argument and the result [S, H, d]."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))  # each [1, H, S, d], views
    return F.scaled_dot_product_attention(q, k, v).squeeze(0).transpose(0, 1)  # [S, H, d]
