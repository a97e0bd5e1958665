"""Random weights that keep activations of order one, drawn per tensor name.

Each tensor has a generator of its own, so adding a tensor changes no other. The figures only have to give
films that are neither flat nor clipped; they mean nothing beyond that.
"""

import math
import zlib

import torch
import torch.nn.functional as F
from torch import Tensor

from model.audio_vae import statistics as audio_statistics
from model.audio_vae.activation import low_pass_taps
from model.rotary import inverse_frequencies
from model.video_vae import statistics as video_statistics

NORM_SPREAD = 0.1
BIAS_SPREAD = 0.02
PATCH_CHANNELS, PATCH_FRAMES = 3, 4
STATISTICS = {
    (name, len(values)): values
    for vae in (video_statistics, audio_statistics)
    for name, values in (("latents_mean", vae.LATENTS_MEAN), ("latents_std", vae.LATENTS_STD))
}
"""Of the release, by name and number of channels."""


def random_tensor(name: str, shape: tuple[int, ...], *, seed: int) -> Tensor:
    """Return the float32 tensor called `name`; the same for the same name, shape and seed."""
    fixed = _fixed(name, shape)
    if fixed is not None:
        return fixed
    generator = torch.Generator().manual_seed(seed ^ zlib.crc32(name.encode()))
    if name == "decoder.proj_out.weight":
        return _smooth_patches(shape, generator) / math.sqrt(shape[1])
    noise = torch.randn(shape, generator=generator)
    centre, spread = _distribution(name, shape)
    return centre + spread * noise


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a tensor's values."""
    if name.endswith(("act.alpha", "act.beta")):
        return 0.0, 0.3  # logarithms
    if name.endswith((".alpha", "scale1", "scale2")) or _is_norm(name):
        return 1.0, NORM_SPREAD
    if name.endswith("bias") or len(shape) == 1:
        return 0.0, BIAS_SPREAD
    if name.endswith(("embed_tokens.weight", "adaln_t_table", "register_tokens", "pos_embed.weight")):
        return 0.0, 0.5
    return 0.0, _gain(name) / math.sqrt(_fan_in(name, shape))


def _fixed(name: str, shape: tuple[int, ...]) -> Tensor | None:
    """Tensors that are no weights: frequencies, filters, the latents' statistics and buffers of zeros."""
    if name == "rope.inv_freq":
        return inverse_frequencies(shape[0], 10_000.0)
    if name.endswith(("zero_k_bias", "mask_token")):
        return torch.zeros(shape)
    if name.endswith(".filter"):
        return low_pass_taps()
    values = STATISTICS.get((name, shape[0])) if shape else None
    return None if values is None else torch.tensor(values)


def _smooth_patches(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Rows of a patch's 3 × 4 × 16 × 16 values that vary slowly over it, so a film is no pixel noise."""
    pixels = math.isqrt(shape[0] // (PATCH_CHANNELS * PATCH_FRAMES))
    coarse = torch.randn((PATCH_CHANNELS, shape[1], 2, 3, 3), generator=generator)
    smooth = F.interpolate(coarse, size=(PATCH_FRAMES, pixels, pixels), mode="trilinear", align_corners=True)
    return smooth.permute(0, 2, 3, 4, 1).reshape(shape)


def _is_norm(name: str) -> bool:
    return name.endswith("weight") and any(
        part.startswith("norm") or part.endswith(("norm", "layernorm")) for part in name.split(".")
    )


def _fan_in(name: str, shape: tuple[int, ...]) -> int:
    # A transposed convolution stores [in, out, k]; each output sample sees about k / stride of its taps.
    transposed = name.startswith("decoder.ups.")
    return shape[0] * 2 if transposed else math.prod(shape[1:])


def _gain(name: str) -> float:
    if name.startswith("decoder.conv_post"):
        return 0.1  # leaves the sound below full scale
    return 0.5 if name.startswith("decoder.resblocks.") else 1.0
