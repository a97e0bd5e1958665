"""Initial noise: one CPU generator per request, so a seed means the same film start on every device.

The draw order is part of what a seed means: conditions first where they draw from the film's own stream, then
video, then audio. The flat numbers of a film without conditions are the same in ComfyUI and diffusers; they
differ in the layout that the audio half fills.
Sources: diffusers 0.42.1 prepare-latents steps; ComfyUI 783545f (golden `noise`). Knows no sigmas.

Shapes: as in `latents.py`; N rows of a condition.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.latents import Latents
from model.packing import CONDITION_TIMESTEP
from model.patches import patchify_video
from queue_schemas.conventions import Conventions
from queue_schemas.geometry import (
    AUDIO_CHANNELS,
    AUDIO_LATENT_CHANNELS,
    PATCH,
    VIDEO_LATENT_CHANNELS,
    LatentShape,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard normal float32 on the CPU."""

    film: Latents
    """The state at sigma 1."""
    conditions: list[Tensor]
    """Rows [N, 96] for each keyframe, picture and clip, in packed order; sounds get none."""


def draw_noise(
    shape: LatentShape, *, seed: int, conventions: Conventions, conditions: Sequence[LatentShape] = ()
) -> Noise:
    """Draw all noise of a request; `conditions` are its keyframes, pictures and clips, in packed order."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    if conventions.condition_noise == "sequential_latents":
        rows = [patchify_video(_draw_latents(each, generator)) for each in conditions]
    else:
        rows = [_draw_rows(each, seed) for each in conditions]
    video = _draw_latents(shape, generator)
    if conventions.audio_noise_layout == "latent":
        audio = _draw((AUDIO_LATENT_CHANNELS, AUDIO_CHANNELS, shape.audio), generator).transpose(0, 1)
    else:
        flat = _draw((AUDIO_CHANNELS * shape.audio, AUDIO_LATENT_CHANNELS), generator)
        # Rows are channel-major, so [2, Ta, 32] -> [2, 32, Ta].
        audio = flat.unflatten(0, (AUDIO_CHANNELS, shape.audio)).transpose(1, 2)
    return Noise(film=Latents(video=video, audio=audio.contiguous()), conditions=rows)


def noise_condition(rows: Tensor, noise: Tensor, *, conventions: Conventions) -> Tensor:
    """Return clean rows as the network is shown them: 99.9 % of them, and 0.1 % of noise; both float32."""
    clean = CONDITION_TIMESTEP
    if conventions.condition_mix_in_float64:
        return clean * rows + (1.0 - clean) * noise
    kept = torch.tensor(clean, dtype=torch.float32)  # on the host: a scalar does not make a device wait
    return kept * rows + (1.0 - kept) * noise


def _draw(size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator, dtype=torch.float32)


def _draw_latents(shape: LatentShape, generator: torch.Generator) -> Tensor:
    return _draw((VIDEO_LATENT_CHANNELS, shape.frames, shape.height, shape.width), generator)


def _draw_rows(shape: LatentShape, seed: int) -> Tensor:
    """Start the seed anew: conditions of one size get equal noise, and the first numbers of the film's."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return _draw((shape.video_tokens, VIDEO_LATENT_CHANNELS * PATCH * PATCH), generator)
