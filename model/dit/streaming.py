"""Modules whose tensors lie in host memory, used on a device one after the other.

For weights that are needed seldom and for a moment: on the device they take the memory of two modules, and
one is copied while another computes. Modules that lie on the device already are used as they are.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from model.config import TransformerConfig

Tensors = dict[str, Tensor]


def on_device(modules: Sequence[nn.Module], device: torch.device) -> Iterator[Callable[..., Any]]:
    """Yield each module as a function that computes on `device`, to be called before the next is taken."""
    elsewhere = [{name: t for name, t in _tensors(module) if t.device != device} for module in modules]
    copy = _copy_ahead if device.type == "cuda" and any(elsewhere) else _copy
    for module, tensors in zip(modules, copy(elsewhere, device), strict=True):
        yield lambda *args, module=module, tensors=tensors: functional_call(module, tensors, args)


def is_streamed(module: str, config: TransformerConfig) -> bool:
    """Say whether a linear of the transformer stays in host memory when the rest lies on a GPU.

    The full layout's AdaLN: 13 of 33 billion weights, which are read once for a schedule.
    """
    return module.endswith("adaln_proj.linear") and not config.pruned


def to_pinned(tensor: Tensor) -> Tensor:
    """Copy a tensor from a CUDA device to host memory that its copy engines read at the full rate."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(module.named_parameters(), module.named_buffers())


def _copy(modules: Sequence[Tensors], device: torch.device) -> Iterator[Tensors]:
    for tensors in modules:
        yield {name: tensor.to(device) for name, tensor in tensors.items()}


def _copy_ahead(modules: Sequence[Tensors], device: torch.device) -> Iterator[Tensors]:
    """Copy on a stream of its own, one module ahead of what the current stream computes with."""
    computing, copying = torch.cuda.current_stream(device), torch.cuda.Stream(device)

    def start(tensors: Tensors) -> Tensors:
        copies = {name: torch.empty_like(tensor, device=device) for name, tensor in tensors.items()}
        copying.wait_stream(computing)  # whatever used this memory before
        with torch.cuda.stream(copying):
            for name, tensor in tensors.items():
                copies[name].copy_(tensor, non_blocking=True)
        return copies

    try:
        ahead = start(modules[0])
        for following in (*modules[1:], {}):
            copying.synchronize()
            copies, ahead = ahead, start(following)
            yield copies
            computing.synchronize()
            copies.clear()  # so that the next but one takes this memory
    finally:
        copying.synchronize()
