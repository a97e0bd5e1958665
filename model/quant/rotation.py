"""ConvRot's rotation: every group of g neighbouring columns times one g × g regular Hadamard matrix.

The matrix is never stored. It is the Kronecker power of J - 2 · antidiagonal (4 × 4), divided by sqrt(g), so
symmetric and its own inverse: the same function rotates and rotates back. Source: comfy-kitchen 0.2.40.
"""

import torch
from torch import Tensor


def hadamard(group: int, *, device: torch.device | None = None) -> Tensor:
    """Return the matrix times sqrt(group): float32 [group, group] of ±1; `group` is a power of four."""
    seed = 1 - 2 * torch.eye(4, device=device).flip(0)
    matrix = seed
    while matrix.shape[0] < group:
        matrix = torch.kron(matrix, seed)
    return matrix


def rotate_groups(x: Tensor, group: int) -> Tensor:
    """Return float32 x [..., I] with each group of `group` columns, which divides I, rotated.

    Of integers up to 2^16 / group the result is exact, in any order of sums and with TF32 too: the decoders
    rotate the codes and scale afterwards, so a weight has the same bits on every device.
    """
    turned = x.unflatten(-1, (-1, group)) @ hadamard(group, device=x.device)
    return turned.flatten(-2).mul_(group**-0.5)
