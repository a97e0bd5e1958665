"""The video encode against diffusers 0.42.1's own condition step, from the same random weights."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from diffusers_twins import video_encoder_like, video_vae_of_diffusers
from torch import Tensor

from model.config import VideoEncoderConfig, VideoVaeConfig
from model.video_vae import encode_clip
from model.video_vae.pixels import IMAGENET_MEAN, IMAGENET_STD
from queue_schemas.conventions import COMFYUI, DIFFUSERS, Conventions

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-5  # reached: 4e-7
HALF = 2e-3
"""Relative, of a value that falls to either side of a rounding to float16; they are few."""

SMALL = VideoVaeConfig(
    latent_channels=4,
    patch_pixels=4,
    tile_pixels=16,
    tile_overlap_pixels=4,
    encoder=VideoEncoderConfig(
        channels=(8, 16), blocks_per_level=1, space_strides=(2, 2), time_strides=(2, 2), num_groups=8
    ),
)
DEEPER = VideoVaeConfig(
    latent_channels=6,
    patch_pixels=8,
    tile_pixels=32,
    tile_overlap_pixels=16,
    encoder=VideoEncoderConfig(
        channels=(8, 16, 16, 24),
        blocks_per_level=2,
        space_strides=(2, 2, 2, 1),
        time_strides=(1, 2, 2, 1),
        num_groups=4,
    ),
)
CONFIGS = pytest.mark.parametrize("config", [SMALL, DEEPER], ids=["small", "deeper"])


def encode_both(
    config: VideoVaeConfig, frames: np.ndarray[Any, Any], *, tiled: bool, conventions: Conventions
) -> tuple[Tensor, Tensor]:
    """Encode as our preset does, and as diffusers' step, of which only the posterior is chosen."""
    from diffusers.modular_pipelines.minimax_h3.encoders import encode_vae_condition

    theirs = video_vae_of_diffusers(config, tiled=tiled)
    ours = video_encoder_like(theirs, config if tiled else dataclasses.replace(config, tile_pixels=256))
    found = encode_clip(ours, [frames], conventions=conventions)
    pixels = torch.from_numpy(frames).permute(3, 0, 1, 2)[None]
    if conventions.condition_posterior == "sample_fp16":
        with torch.no_grad():
            return found, encode_vae_condition(theirs, pixels, IMAGENET_MEAN, IMAGENET_STD)[0]
    mean, std = (torch.tensor(values).view(1, 3, 1, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    with torch.no_grad():
        posterior = theirs.encode((pixels.float() / 255 - mean) / std, return_dict=False)[0]
    return found, ours.normalise(posterior.mode()[0])


def draw_frames(config: VideoVaeConfig, count: int, height: int, width: int) -> np.ndarray[Any, Any]:
    """Frames of so many latents."""
    grid = config.patch_pixels
    shape = (count, height * grid, width * grid, 3)
    return np.random.default_rng(count).integers(0, 256, shape, dtype=np.uint8)


@CONFIGS
@pytest.mark.parametrize(
    ("tiled", "count"), [*((False, count) for count in (1, 2, 17, 18, 39)), (True, 1), (True, 22)]
)
def test_the_mean_of_a_clip_of_any_length_equals_diffusers(
    config: VideoVaeConfig, tiled: bool, count: int, relative_l2: Callable[[Tensor, Tensor], float]
) -> None:
    frames = draw_frames(config, count, 7, 5)

    found, wanted = encode_both(config, frames, tiled=tiled, conventions=COMFYUI)

    assert found.shape == wanted.shape
    assert found.std() > 0.3, "the random weights left nothing to compare"
    assert relative_l2(found, wanted) <= TOLERANCE


@CONFIGS
@pytest.mark.parametrize("tiled", [False, True], ids=["whole", "tiled"])
@pytest.mark.parametrize("count", [1, 22])
def test_the_sample_is_that_of_diffusers_condition_step(
    config: VideoVaeConfig, tiled: bool, count: int
) -> None:
    frames = draw_frames(config, count, 7, 5)

    found, wanted = encode_both(config, frames, tiled=tiled, conventions=DIFFUSERS)

    off = (found - wanted).abs() > 1e-6  # those that round the other way
    assert off.float().mean() < 0.02
    torch.testing.assert_close(found, wanted, rtol=HALF, atol=HALF)
