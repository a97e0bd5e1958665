"""Encoders: a plain weight into the tensors that a quantised file stores for it.

They reproduce comfy-kitchen 0.2.40 (the encoder of the published files) byte for byte from float32 input, and
are meant for files made here: nothing at run time encodes a weight.

Shapes: O rows, I columns of the weight.
"""

from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from model.checkpoints.expressions import round_up
from model.quant.marker import Marker, QuantFormat, parse_marker
from model.quant.nvfp4 import BLOCK, swizzle
from model.quant.rotation import rotate_groups

E4M3_MAX: Final = 448.0
E2M1_MAX: Final = 6.0


def quantise(
    marker: str, weight: Tensor, *, input_scale: float | None = None, pre_quant_scale: Tensor | None = None
) -> dict[str, Tensor]:
    """Return suffix to tensor for a weight [O, I] of any float dtype, in the format that `marker` names.

    `marker` is the text of the file's `comfy_quant`, which comes back as one of the tensors: for example
    `{"format": "nvfp4"}`. `input_scale` (FP8, NVFP4) is stored as given. `pre_quant_scale` [I] (NVFP4) is
    stored as BF16, and divided out of the weight before it is encoded. Raises ValueError for weights that no
    format can hold (NaN, infinity) and for a group that does not divide I.
    """
    parsed = parse_marker(marker.encode(), name="comfy_quant", source=Path("synthetic"))
    if not weight.isfinite().all():
        raise ValueError("a weight with NaN or infinity cannot be quantised")
    tensors: dict[str, Tensor] = {}
    if pre_quant_scale is not None:
        tensors["pre_quant_scale"] = pre_quant_scale.to(torch.bfloat16)
        weight = weight.float() / tensors["pre_quant_scale"].float()
    if input_scale is not None:
        tensors["input_scale"] = torch.tensor(input_scale, dtype=torch.float32)
    tensors |= _encode(parsed, weight)
    tensors["comfy_quant"] = torch.frombuffer(bytearray(marker.encode()), dtype=torch.uint8)
    return tensors


def _encode(marker: Marker, weight: Tensor) -> dict[str, Tensor]:
    match marker.format:
        case QuantFormat.NVFP4:
            codes, scales, scale = encode_nvfp4(weight)
            return {"weight": codes, "weight_scale": scales, "weight_scale_2": scale}
        case QuantFormat.FP8:
            largest = weight.float().abs().max()
            scale = largest / E4M3_MAX if largest > 0 else torch.ones(())
            return {"weight": encode_fp8(weight.float(), scale), "weight_scale": scale}
        case QuantFormat.INT8:
            codes, scale = encode_int8(weight, group=marker.group)
            return {"weight": codes, "weight_scale": scale}
        case QuantFormat.INT4:
            assert marker.group is not None
            codes, scale = encode_int4(weight, group=marker.group)
            return {"weight": codes, "weight_scale": scale}


def encode_nvfp4(weight: Tensor, scale: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return packed codes, swizzled block scales and the global scale, padded as `NVFP4Linear` stores them.

    Without a `scale` it is max / 2688 in the weight's own dtype, as comfy-kitchen has it.
    """
    if scale is None:
        scale = (weight.abs().max() / (E4M3_MAX * E2M1_MAX)).float()
        scale = scale if scale > 0 else torch.ones_like(scale)  # the reference would store NaN
    rows, columns = weight.shape
    padded = F.pad(weight.float(), (0, -columns % 16, 0, -rows % 16)).unflatten(-1, (-1, BLOCK))
    block_scales = padded.abs().amax(-1) / E2M1_MAX / scale  # [O', I' / 16]
    block_scales = block_scales.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    step = (block_scales.float() * scale).unsqueeze(-1)
    codes = encode_e2m1(torch.where(step == 0, 0.0, padded / step)).flatten(-2)
    packed = codes[:, ::2] << 4 | codes[:, 1::2]
    blocks = block_scales.shape[1]
    stored = torch.zeros(round_up(padded.shape[0], 128), round_up(blocks, 4), dtype=torch.uint8)
    stored[: padded.shape[0], :blocks] = block_scales.view(torch.uint8)
    return packed, swizzle(stored).view(torch.float8_e4m3fn), scale


def encode_e2m1(values: Tensor) -> Tensor:
    """Return the nearest codes 0..15, uint8; ties go to the even code, values beyond 6 to 6, -0 to 8."""
    size = values.abs()
    steps = [size > edge for edge in (0.25, 1.25, 2.5, 5.0)] + [size >= edge for edge in (0.75, 1.75, 3.5)]
    return torch.stack(steps).sum(0, dtype=torch.uint8) | values.signbit().to(torch.uint8) << 3


def encode_fp8(values: Tensor, scale: Tensor) -> Tensor:
    """Return E4M3 codes of `values` / `scale`, by a reciprocal in the values' dtype; clamped, as
    a cast of what lies outside ±448 gives NaN in some torch versions and 448 in others.
    """
    reciprocal = (1.0 / scale.float()).to(values.dtype)
    return (values * reciprocal).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def encode_int8(weight: Tensor, *, group: int | None) -> tuple[Tensor, Tensor]:
    """Return int8 [O, I] and float32 scales [O, 1]; in float32 throughout, like the published files."""
    values = _rotated(weight, group)
    scale = (values.abs().amax(-1, keepdim=True) / 127.0).clamp(min=1e-30)
    return (values / scale).round().clamp(-128, 127).to(torch.int8), scale


def encode_int4(weight: Tensor, *, group: int) -> tuple[Tensor, Tensor]:
    """Return int8 [O, I / 2], the low nibble being the even column, and float32 scales [O]."""
    values = _rotated(weight, group)
    scale = values.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 7.0
    codes = (values / scale).round().clamp(-7, 7).to(torch.int8)
    return codes[:, 1::2] << 4 | codes[:, ::2] & 15, scale[:, 0]


def _rotated(weight: Tensor, group: int | None) -> Tensor:
    values = weight.float()
    if group is None:
        return values
    if values.shape[1] % group:
        raise ValueError(f"groups of {group} columns do not divide {values.shape[1]}")
    return rotate_groups(values, group)
