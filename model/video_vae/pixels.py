"""Pixels: between bytes and the VAE's ImageNet-normalised RGB; to bytes by either rounding."""

from typing import Literal

import torch
from torch import Tensor

from model.errors import OutputRejectedError

Rounding = Literal["truncate", "round"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def from_bytes(frames: Tensor) -> Tensor:
    """Turn uint8 [F, H, W, 3] into the encoder's input [3, F, H, W], float32, on the same device."""
    std = torch.tensor(IMAGENET_STD, device=frames.device).view(3, 1, 1, 1)
    mean = torch.tensor(IMAGENET_MEAN, device=frames.device).view(3, 1, 1, 1)
    return (frames.permute(3, 0, 1, 2) / 255.0 - mean) / std


def to_unit_range(raw: Tensor) -> Tensor:
    """Turn decoder output [3, F, H, W] into RGB in [0, 1], float32. Refuses values that are not finite."""
    if not raw.isfinite().all():
        raise OutputRejectedError("video pixels")
    std = torch.tensor(IMAGENET_STD, device=raw.device).view(3, 1, 1, 1)
    mean = torch.tensor(IMAGENET_MEAN, device=raw.device).view(3, 1, 1, 1)
    return (raw.float() * std + mean).clamp(0.0, 1.0)


def to_bytes(pixels: Tensor, rounding: Rounding) -> Tensor:
    """Turn [3, F, H, W] in [0, 1] into uint8 [F, H, W, 3] on the CPU.

    `truncate` is ComfyUI's way to save a film, `round` (half to even) diffusers'; half of all values differ
    by one.
    """
    scaled = pixels * 255.0
    if rounding == "round":
        scaled = scaled.round()
    return scaled.to(torch.uint8).permute(1, 2, 3, 0).contiguous().cpu()
