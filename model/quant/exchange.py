"""Puts the format's own class in the place of a linear or embedding, by name."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from model.quant.fp8 import FP8Linear
from model.quant.int4 import Int4Linear
from model.quant.int8 import Int8Embedding, Int8Linear
from model.quant.linear import QuantLinear
from model.quant.marker import Marker, QuantFormat
from model.quant.nvfp4 import NVFP4Linear

LINEARS: Final[Mapping[QuantFormat, type[QuantLinear]]] = {
    QuantFormat.NVFP4: NVFP4Linear,
    QuantFormat.FP8: FP8Linear,
    QuantFormat.INT8: Int8Linear,
    QuantFormat.INT4: Int4Linear,
}


def make_linear(
    marker: Marker, tensors: Mapping[str, Tensor], *, shape: tuple[int, int], bias: Tensor | None = None
) -> QuantLinear:
    """Return the linear of a stored weight; `tensors` are named by suffix, `shape` is [O, I]."""
    return LINEARS[marker.format](marker, tensors, shape=shape, bias=bias)


def exchange(
    module: nn.Module, name: str, marker: Marker, tensors: Mapping[str, Tensor], *, dtype: torch.dtype
) -> None:
    """Replace the linear or embedding called `name` in `module`; a bias stays the parameter that it is.

    An embedding gives its rows in `dtype`; a linear answers in its input's dtype.
    """
    path, _, leaf = name.rpartition(".")
    parent = module.get_submodule(path)
    old = getattr(parent, leaf)
    new: nn.Module
    if isinstance(old, nn.Embedding):
        new = Int8Embedding(marker, **tensors, dtype=dtype)
    else:
        assert isinstance(old, nn.Linear)
        new = make_linear(marker, tensors, shape=(old.out_features, old.in_features), bias=old.bias)
    setattr(parent, leaf, new.eval())
