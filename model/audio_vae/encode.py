"""Encode of one sound: a stereo waveform to normalised latents, in full float32 as the decode.

Shapes: N samples at 32 kHz, n latents of 800 samples each.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from model.audio_vae.encoder import AudioEncoder
from model.errors import OutputRejectedError
from model.precision import full_float32_convolutions
from queue_schemas.conventions import Conventions


@torch.no_grad()
def encode_sound(encoder: AudioEncoder, samples: Tensor, *, conventions: Conventions) -> Tensor:
    """Encode `samples` [2, N] in [-1, 1], left first, to float32 [2, 32, n] on the encoder's device.

    The posterior's mean, in every source. Raises ValueError for a sound that fills no latent, and
    `OutputRejectedError` when a latent is not finite.
    """
    assert encoder.config.encoder is not None
    if samples.ndim != 2:
        raise ValueError(f"a sound must be [channels, samples], not {list(samples.shape)}")
    hop, device = math.prod(encoder.config.encoder.rates), encoder.latents_mean.device
    whole = fill_latents(samples, hop=hop, remainder=conventions.sound_remainder)
    with torch.autocast(device.type, enabled=False), full_float32_convolutions():
        latents = encoder.normalise(encoder(whole.to(device, torch.float32)[:, None]))
    if not latents.isfinite().all():
        raise OutputRejectedError("a sound's latents")
    return latents


def fill_latents(samples: Tensor, *, hop: int, remainder: Literal["centre_crop", "zero_pad"]) -> Tensor:
    """Make [2, N] a multiple of `hop` long: by silence at its end, or by a cut at both, the odd sample last.

    Raises ValueError for a sound that is too short to be cut.
    """
    missing, over = -samples.shape[-1] % hop, samples.shape[-1] % hop
    if remainder == "zero_pad":
        samples = F.pad(samples, (0, missing))
    else:
        samples = samples[..., over // 2 : samples.shape[-1] - (over - over // 2)]
    if not samples.shape[-1]:
        raise ValueError(f"a sound needs {hop} samples at least")
    return samples
