"""Initial noise: one CPU generator per request, so a seed means the same film start on every device.

The draw order is part of what a seed means: video first, then audio, both from the same stream. The flat
numbers are the same in ComfyUI and diffusers; they differ in the layout that the audio half fills.
Sources: diffusers 0.42.1 prepare-latents step; ComfyUI 783545f (golden `noise`). Knows no sigmas.

Shapes: as in `latents.py`.
"""

import torch

from model.latents import Latents
from queue_schemas.conventions import Conventions
from queue_schemas.geometry import (
    AUDIO_CHANNELS,
    AUDIO_LATENT_CHANNELS,
    VIDEO_LATENT_CHANNELS,
    LatentShape,
)


def draw_noise(shape: LatentShape, *, seed: int, conventions: Conventions) -> Latents:
    """Return standard normal float32 noise on the CPU: the state at sigma 1."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    video = torch.randn(
        (VIDEO_LATENT_CHANNELS, shape.frames, shape.height, shape.width),
        generator=generator,
        dtype=torch.float32,
    )
    if conventions.audio_noise_layout == "latent":
        audio = torch.randn(
            (AUDIO_LATENT_CHANNELS, AUDIO_CHANNELS, shape.audio), generator=generator, dtype=torch.float32
        ).transpose(0, 1)  # [2, 32, Ta]
    else:
        audio = (
            torch.randn(
                (AUDIO_CHANNELS * shape.audio, AUDIO_LATENT_CHANNELS),
                generator=generator,
                dtype=torch.float32,
            )
            .unflatten(0, (AUDIO_CHANNELS, shape.audio))
            .transpose(1, 2)  # rows are channel-major, so [2, Ta, 32] -> [2, 32, Ta]
        )
    return Latents(video=video, audio=audio.contiguous())
