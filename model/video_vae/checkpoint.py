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

from model.checkpoints import names
from model.checkpoints.names import Layout
from model.config import VideoEncoderConfig, VideoVaeConfig
from model.shapes import Shape, check_rules, count_layers, sizing_shapes
from model.video_vae.decoder import PIXEL_CHANNELS, VideoDecoder
from model.video_vae.statistics import LATENTS_MEAN, LATENTS_STD

ENCODER_PREFIXES: Final = names.ENCODER_PREFIXES["video_vae"]
DECODER_PREFIXES: Final = names.DECODER_PREFIXES["video_vae"]

_FLOAT32_PARTS = frozenset({"norm1", "norm2", "norm_out", "scale1", "scale2", "latents_mean", "latents_std"})
_LEVEL, _BLOCK = "encoder.down.{}.block.0.conv1.weight", "encoder.down.0.block.{}.conv1.weight"
SIZING: Final = {
    "decoder.x_embedder.weight": 2,
    "decoder.transformer_blocks.0.ff.w1.weight": 2,
    "decoder.proj_out.weight": 2,
}
"""Tensors whose shapes fix the decoder's architecture, and how many dimensions each has."""


def video_config_from_shapes(
    shapes: Mapping[str, Shape], *, source: Path = Path("video VAE")
) -> VideoVaeConfig:
    """Read the architecture from a file's tensor shapes; depth-pruned decoders are read as deep as they are.

    A file without any tensor of the encoder holds the decoder alone. Raises `CheckpointMismatchError`,
    naming `source`, when a tensor that fixes a size is missing or cannot be meant.
    """
    sizes = sizing_shapes(shapes, SIZING, source=source)
    base = VideoVaeConfig()
    decoder_dim, latent_channels = sizes["decoder.x_embedder.weight"]
    patch_area = sizes["decoder.proj_out.weight"][0] // (PIXEL_CHANNELS * base.patch_frames)
    config = replace(
        base,
        latent_channels=latent_channels,
        decoder_dim=decoder_dim,
        num_layers=count_layers(shapes, "decoder.transformer_blocks.{}.scale1", source=source),
        ffn_dim=max(1, sizes["decoder.transformer_blocks.0.ff.w1.weight"][0] // 2),
        patch_pixels=max(1, math.isqrt(patch_area)),
        encoder=None,
    )
    if any(name.startswith(ENCODER_PREFIXES) for name in shapes):
        config = replace(config, encoder=_encoder_from_shapes(shapes, config, source=source))
    return config


def _encoder_from_shapes(
    shapes: Mapping[str, Shape], config: VideoVaeConfig, *, source: Path
) -> VideoEncoderConfig:
    """Read the encoder's levels; a level that makes its result smaller has a convolution for that.

    By how much in time, no shape tells: in that the level is as the released one at its place.
    """
    base = VideoEncoderConfig()
    num_levels = count_layers(shapes, _LEVEL, source=source)
    levels = [_LEVEL.format(index) for index in range(num_levels)]
    sizes = sizing_shapes(shapes, dict.fromkeys(levels, 5), source=source)
    strided = [f"encoder.down.{index}.downsample.conv.weight" in shapes for index in range(num_levels)]
    found = replace(
        base,
        channels=tuple(sizes[name][0] for name in levels),
        blocks_per_level=count_layers(shapes, _BLOCK, source=source),
        space_strides=tuple(1 + yes for yes in strided),
        time_strides=base.time_strides[:num_levels],
    )
    pixels, frames = math.prod(found.space_strides), math.prod(found.time_strides)
    check_rules(
        source,
        {
            f"{levels[-1]}: more than {len(base.channels)} levels": num_levels <= len(base.channels),
            f"{_LEVEL.format(0)}: {found.blocks_per_level} blocks a level instead of"
            f" {base.blocks_per_level}": found.blocks_per_level <= base.blocks_per_level,
            f"{levels[-1]}: levels down to 1 latent in {frames} frames of {pixels} pixels a side, and the"
            f" decoder makes {config.patch_frames} of {config.patch_pixels}": (pixels, frames)
            == (config.patch_pixels, config.patch_frames),
            **{
                f"{name}: {sizes[name][0]} channels do not split into {base.num_groups} groups": (
                    sizes[name][0] % base.num_groups == 0
                )
                for name in levels
            },
        },
    )
    return found


def parameter_dtypes(config: VideoVaeConfig, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return name and dtype of every decoder tensor when the decoder runs in `dtype`.

    float32 keeps everything exact. float16 keeps norms, scales and statistics in float32 (the rule of
    diffusers 0.42.1). bfloat16 is refused, as ComfyUI refuses it: 8 bits of mantissa are too few for 8 bits
    of colour.
    """
    if dtype not in (torch.float16, torch.float32):
        raise ValueError(f"the video VAE decodes in float16 or float32, not in {dtype}")
    with torch.device("meta"):
        state = VideoDecoder(config).state_dict()
    return {name: torch.float32 if _FLOAT32_PARTS.intersection(name.split(".")) else dtype for name in state}


def default_tensors(config: VideoVaeConfig) -> dict[str, Tensor]:
    """Return what a file may leave out: the release's statistics, and the mask token that nothing reads."""
    return {"decoder.mask_token": torch.zeros(1, 1, config.decoder_dim), **default_statistics(config)}


def default_statistics(config: VideoVaeConfig) -> dict[str, Tensor]:
    """Return the release's statistics, which either half of a file may leave out."""
    if config.latent_channels != len(LATENTS_MEAN):
        return {}
    return {"latents_mean": torch.tensor(LATENTS_MEAN), "latents_std": torch.tensor(LATENTS_STD)}


def row_order(module: str, config: VideoVaeConfig, *, layout: Layout) -> Tensor | None:
    """Return which of a file's rows is each of ours, int64 [rows], or None where they are the same.

    diffusers has q, k and v apart, which we interleave head by head, and the halves of `w1` swapped.
    """
    if layout == "diffusers" and module.endswith("attn.to_qkv"):
        return torch.arange(3 * config.decoder_dim).view(3, -1, config.head_dim).transpose(0, 1).flatten()
    if layout == "diffusers" and module.endswith("ff.w1"):
        return torch.arange(2 * config.ffn_dim).roll(config.ffn_dim)
    return None
