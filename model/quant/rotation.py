"""ConvRot's rotation: every group of g neighbouring columns times one g × g regular Hadamard matrix.

The matrix is never stored. It is the Kronecker power of J - 2 · antidiagonal (4 × 4), divided by sqrt(g), so
symmetric and its own inverse: the same function rotates and rotates back. Done here as additions in a fixed
order instead of a matrix product, so that the result has the same bits on every device, whatever TF32 says.
Source: comfy-kitchen 0.2.40.
"""

import torch
from torch import Tensor


def rotate_groups(x: Tensor, group: int) -> Tensor:
    """Return x [..., I] with each group of `group` columns (a power of four that divides I) rotated."""
    turned, stride = x, 1
    while stride < group:
        a, b, c, d = turned.unflatten(-1, (-1, 4, stride)).unbind(-2)  # each [..., I / (4 · stride), stride]
        total = (a + b) + (c + d)
        turned = torch.stack([total - 2 * part for part in (d, c, b, a)], dim=-2).flatten(-3)
        turned *= 0.5  # one factor of 1 / sqrt(4), exact
        stride *= 4
    return turned
