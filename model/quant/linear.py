"""`QuantLinear`: what the linears of all storage formats share.

`forward` is the reference that every faster path is measured against: decode the whole weight to float32,
round it once to the input's dtype, multiply as `nn.Linear` does. Activations are never quantised, so the only
error is that of the stored weight. ComfyUI computes the same where the GPU lacks the format's matrix product;
elsewhere it quantises activations too (NVFP4 to 4 bits, INT8 per rotated row), for 1.4 times the error.

Shapes: O rows (output features), I columns (input features).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.quant.marker import Marker


class QuantLinear(nn.Module, ABC):
    """A linear whose buffers are a file's tensors, byte for byte; a `.to(dtype)` would round its scales."""

    weight: Tensor
    weight_scale: Tensor
    weight_scale_2: Tensor
    bias: Tensor | None

    def __init__(
        self, marker: Marker, tensors: Mapping[str, Tensor], *, shape: tuple[int, int], bias: Tensor | None
    ) -> None:
        """Keep `tensors`, named by suffix, as buffers; `shape` is [O, I] without the padding of storage."""
        super().__init__()
        self.marker, self.shape = marker, shape
        for suffix, tensor in tensors.items():
            self.register_buffer(suffix, tensor)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self._decoded: Tensor | None = None

    @property
    def out_features(self) -> int:
        return self.shape[0]

    @property
    def in_features(self) -> int:
        return self.shape[1]

    @abstractmethod
    def dequantise(self) -> Tensor:
        """Return the weight, float32 [O, I]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., O] from [..., I], in the dtype of x."""
        weight = self.dequantise().to(x.dtype) if self._decoded is None else self._decoded
        return F.linear(x, weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, {self.marker.format}"


@contextmanager
def decoded(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Have the quantised linears of `module` decode once for all products inside, with inputs of `dtype`."""
    linears = [part for part in module.modules() if isinstance(part, QuantLinear)]
    for linear in linears:
        linear._decoded = linear.dequantise().to(dtype)
    try:
        yield
    finally:
        for linear in linears:
            linear._decoded = None
