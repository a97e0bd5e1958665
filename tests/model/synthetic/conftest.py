"""What these tests share: weights as a written file means them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from model.checkpoints.descriptions import HeaderDescription
from model.quant.exchange import make_linear
from model.quant.marker import parse_marker

Decoded = dict[str, Tensor]
Decode = Callable[[Path, HeaderDescription], Decoded]


@pytest.fixture(scope="session")
def decode() -> Decode:
    """Return module to float32 [O, I] for every quantised linear of a file, AWQ's input scale multiplied in.

    With the norm before it, a linear whose smoothing that norm carries is what the bf16 file has.
    """

    def read(path: Path, description: HeaderDescription) -> Decoded:
        tensors, decoded = load_file(path), {}
        for linear in description.linears:
            if linear.marker is None:
                continue
            prefix = f"{linear.name}."
            stored = {
                name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
            }
            stored.pop("bias", None)
            marker = parse_marker(bytes(stored.pop("comfy_quant").tolist()), name=prefix, source=path)
            shape = (linear.out_features, linear.in_features)
            weight = make_linear(marker, stored, shape=shape).dequantise()
            decoded[linear.name] = (
                weight * stored["pre_quant_scale"] if "pre_quant_scale" in stored else weight
            )
        return decoded

    return read
