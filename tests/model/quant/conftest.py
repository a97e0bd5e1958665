"""The matrix that the golden digests are of, and the digest."""

import hashlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.fixture(scope="session")
def digest() -> Callable[[Tensor], str]:
    """Return the SHA-256 of a tensor's bytes, rows first, little-endian."""
    return lambda tensor: hashlib.sha256(
        bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
    ).hexdigest()


@pytest.fixture(scope="session")
def matrix() -> Callable[[int, int], Tensor]:
    """Return a float32 matrix of awkward values, all exact: five rows of different size, again and again."""

    def make(rows: int, columns: int) -> Tensor:
        n = torch.arange(rows * columns).view(rows, columns)
        return ((40503 * n % 4096) - 2048) / 1024 * torch.exp2((torch.arange(rows) % 5 - 2).float())[:, None]

    return make
