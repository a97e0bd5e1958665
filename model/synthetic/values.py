"""Values of every tensor of a described file: one seeded base, stored as the variant stores it.

A quantised file holds the quantisation of what its bf16 file holds, so both make the same film within the
error of the format. Of a large tensor only the first rows are drawn, which the file then repeats, and layers
have the same ones: a full-size file is written at the disk's speed in bounded memory.
"""

import functools
import math
from typing import Final

import torch
from torch import Tensor

from model.checkpoints.descriptions import HeaderDescription, LinearSpec, TensorSpec
from model.checkpoints.names import pattern_of
from model.synthetic.quantise import quantise
from model.synthetic.weights import random_tensor

SEED: Final = 20_260_801
OWN_ELEMENTS_MAX: Final = 2**20
"""A larger tensor has the values of its namesakes in other layers."""
WHOLE_ELEMENTS_MAX: Final = 2**23
"""A larger tensor repeats its first rows."""
REPEATED_ELEMENTS: Final = 2**22
TILE_ROWS: Final = 128
"""NVFP4's block scales lie in tiles of so many rows, so only whole tiles can be repeated."""
INPUT_SCALE: Final = 16.0 / 448.0
"""Of FP8 activations, which reach about 16 here; E4M3 codes lose nothing to a scale some octaves off."""
SMOOTHING_SPREAD: Final = 0.25
ALPHA_PER_RANK: Final = 1 / 16
"""Of the published 8-step LoRA: alpha 8 at rank 128, and 24 at the 384 of its three stacked factors."""
DTYPES: Final = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "U8": torch.uint8,
}
_SMOOTHED: Final = {
    "self_attn.q_proj": "input_layernorm",
    "self_attn.k_proj": "input_layernorm",
    "self_attn.v_proj": "input_layernorm",
    "mlp.gate_proj": "post_attention_layernorm",
    "mlp.up_proj": "post_attention_layernorm",
}
"""AWQ: the linears whose smoothing is divided out of the norm before them."""


class Values:
    """What each tensor of a file holds. Knows no file: `writer.py` asks for one tensor after the other."""

    def __init__(self, description: HeaderDescription) -> None:
        self._specs = {tensor.name: tensor for tensor in description.tensors}
        self._linears = {item.name: item for item in description.linears if item.marker is not None}
        self._is_awq = any(item.template == "nvfp4_awq" for item in description.linears)
        self._stored: dict[str, dict[str, Tensor]] = {}
        self._repeated = functools.lru_cache(maxsize=16)(_rows)  # layers take turns in a file

    def tensor(self, spec: TensorSpec) -> Tensor:
        """Return the whole tensor, or the first rows of a large one."""
        module, _, suffix = spec.name.rpartition(".")
        linear = self._linears.get(module)
        if linear is not None and suffix != "bias":
            return self._quantised(linear)[suffix]
        return self._plain(spec).to(DTYPES[spec.dtype])

    def bytes(self, spec: TensorSpec) -> memoryview:
        """Return `tensor(spec)` as it lies in the file."""
        return memoryview(self.tensor(spec).contiguous().view(-1).view(torch.uint8).numpy().data)

    def _plain(self, spec: TensorSpec) -> Tensor:
        name = spec.name
        if name.endswith("_layernorm.weight") and self._is_awq:
            return self._base(name, spec.shape) / _smoothing(name, spec.shape[0])
        if name.startswith("diffusion_model."):  # a LoRA
            return self._lora(name, spec.shape)
        return self._base(name, spec.shape)

    def _base(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the float32 values that every variant has under `name`."""
        if math.prod(shape) <= OWN_ELEMENTS_MAX:
            return random_tensor(name, shape, seed=SEED)
        return self._repeated(pattern_of(name), shape)

    def _quantised(self, linear: LinearSpec) -> dict[str, Tensor]:
        """Return suffix to tensor of a quantised linear, encoded once for all of them."""
        shape = (linear.out_features, linear.in_features)
        is_own = math.prod(shape) <= OWN_ELEMENTS_MAX
        key = linear.name if is_own else pattern_of(linear.name)
        if key not in self._stored:
            weight = self._base(f"{linear.name}.weight", shape).to(torch.bfloat16)
            marker = self._specs[f"{linear.name}.comfy_quant"].marker
            assert marker is not None
            self._stored[key] = quantise(
                marker.decode(),
                self._smoothed(linear, weight),
                input_scale=INPUT_SCALE if linear.template == "fp8_scaled" else None,
                pre_quant_scale=_smoothing(linear.name, shape[1]) if linear.template == "nvfp4_awq" else None,
            )
        return self._stored[key]

    def _smoothed(self, linear: LinearSpec, weight: Tensor) -> Tensor:
        """Multiply a weight by what its norm was divided by."""
        own = next((own for own in _SMOOTHED if linear.name.endswith(f".{own}")), None)
        if not self._is_awq or own is None:
            return weight
        norm = f"{linear.name.removesuffix(own)}{_SMOOTHED[own]}.weight"
        return weight.float() * _smoothing(norm, weight.shape[1])

    def _lora(self, name: str, shape: tuple[int, ...]) -> Tensor:
        module, _, _ = name.removesuffix(".weight").rpartition(".")
        rank = self._specs[f"{module}.lora_A.weight"].shape[0]
        if name.endswith(".alpha"):
            return torch.tensor(rank * ALPHA_PER_RANK)
        values = self._base(name, shape)
        if name.endswith("qkv_proj.lora_B.weight"):  # q, k and v have a third of the rank each
            blocks = values.view(3, -1, 3, rank // 3)
            values = (blocks * torch.eye(3).view(3, 1, 3, 1)).view(shape)
        return values


def _rows(name: str, shape: tuple[int, ...]) -> Tensor:
    rows = shape[0]
    if math.prod(shape) > WHOLE_ELEMENTS_MAX:
        wanted = REPEATED_ELEMENTS // math.prod(shape[1:]) // TILE_ROWS * TILE_ROWS
        rows = min(rows, max(TILE_ROWS, wanted))
    return random_tensor(name, (rows, *shape[1:]), seed=SEED)


def _smoothing(name: str, width: int) -> Tensor:
    """Return AWQ's factors [width] near 1, the same in every layer."""
    noise = random_tensor(f"{pattern_of(name)}.smoothing", (width, 1), seed=SEED)[:, 0]
    return (SMOOTHING_SPREAD * noise).exp()
