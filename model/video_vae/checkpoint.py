"""What the loader must know about a video VAE file in ComfyUI's layout: sizes, dtypes, defaults, leftovers.

Reads shapes and names only, never a file. Head width, patch length and the geometry of clips and tiles are in
no shape, and every file has four register tokens; they are the config's constants.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from model.checkpoints.names import Layout
from model.config import VideoVaeConfig
from model.shapes import Shape, count_layers, sizing_shapes
from model.video_vae.decoder import PIXEL_CHANNELS, VideoDecoder
from model.video_vae.statistics import LATENTS_MEAN, LATENTS_STD

ENCODER_PREFIXES = ("encoder.", "quant_conv.")
"""Names that belong to the file but not to the decoder."""

_FLOAT32_PARTS = frozenset({"norm1", "norm2", "norm_out", "scale1", "scale2", "latents_mean", "latents_std"})


SIZING: Final = {
    "decoder.x_embedder.weight": 2,
    "decoder.transformer_blocks.0.ff.w1.weight": 2,
    "decoder.proj_out.weight": 2,
}
"""Tensors whose shapes fix the architecture, and how many dimensions each has."""


def video_config_from_shapes(
    shapes: Mapping[str, Shape], *, source: Path = Path("video VAE")
) -> VideoVaeConfig:
    """Read the architecture from a file's tensor shapes; depth-pruned decoders are read as deep as they are.

    Raises `CheckpointMismatchError`, naming `source`, when a tensor that fixes a size is missing or cannot
    be meant.
    """
    sizes = sizing_shapes(shapes, SIZING, source=source)
    base = VideoVaeConfig()
    decoder_dim, latent_channels = sizes["decoder.x_embedder.weight"]
    patch_area = sizes["decoder.proj_out.weight"][0] // (PIXEL_CHANNELS * base.patch_frames)
    return replace(
        base,
        latent_channels=latent_channels,
        decoder_dim=decoder_dim,
        num_layers=count_layers(shapes, "decoder.transformer_blocks.{}.scale1", source=source),
        ffn_dim=max(1, sizes["decoder.transformer_blocks.0.ff.w1.weight"][0] // 2),
        patch_pixels=max(1, math.isqrt(patch_area)),
    )


def parameter_dtypes(config: VideoVaeConfig, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return name and dtype of every decoder tensor when the decoder runs in `dtype`.

    float32 keeps everything exact. float16 keeps norms, scales and statistics in float32 (the rule of
    diffusers 0.42.1). bfloat16 is refused, as ComfyUI refuses it: 8 bits of mantissa are too few for 8 bits
    of colour.
    """
    if dtype not in (torch.float16, torch.float32):
        raise ValueError(f"the video VAE decodes in float16 or float32, not in {dtype}")
    with torch.device("meta"):
        names = VideoDecoder(config).state_dict().keys()
    return {name: torch.float32 if _FLOAT32_PARTS.intersection(name.split(".")) else dtype for name in names}


def default_tensors(config: VideoVaeConfig) -> dict[str, Tensor]:
    """Return what a file may leave out: the release's statistics, and the mask token that nothing reads."""
    tensors = {"decoder.mask_token": torch.zeros(1, 1, config.decoder_dim)}
    if config.latent_channels == len(LATENTS_MEAN):
        tensors |= {"latents_mean": torch.tensor(LATENTS_MEAN), "latents_std": torch.tensor(LATENTS_STD)}
    return tensors


def row_order(module: str, config: VideoVaeConfig, *, layout: Layout) -> Tensor | None:
    """Return which of a file's rows is each of ours, int64 [rows], or None where they are the same.

    diffusers has q, k and v apart, which we interleave head by head, and the halves of `w1` swapped.
    """
    if layout == "diffusers" and module.endswith("attn.to_qkv"):
        return torch.arange(3 * config.decoder_dim).view(3, -1, config.head_dim).transpose(0, 1).flatten()
    if layout == "diffusers" and module.endswith("ff.w1"):
        return torch.arange(2 * config.ffn_dim).roll(config.ffn_dim)
    return None
