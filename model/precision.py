"""How exactly cuDNN convolves float32: with all 24 bits of mantissa, or with TF32's 11, its default."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def full_float32_convolutions() -> Iterator[None]:
    """Take TF32 from cuDNN's convolutions, for the whole process while it lasts, and give it back."""
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]  # set by a module property
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision = before
