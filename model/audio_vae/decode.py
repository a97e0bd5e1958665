"""Decode of one soundtrack: normalised latents to a waveform in [-1, 1], always in float32.

Lower precision is not offered: bfloat16 decodes come out some 20 dB too quiet. TF32, which cuDNN's
convolutions use by default, is switched off for the call, so that a GPU gives what the CPU gives to about
1e-6.

Shapes: Ta latent frames, N = 800 Ta samples.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from model.audio_vae.decoder import AudioDecoder
from model.errors import OutputRejectedError


@torch.no_grad()
def decode_waveform(decoder: AudioDecoder, latents: Tensor) -> Tensor:
    """Decode normalised `latents` [2, 32, Ta], left first, to float32 [2, N] on the decoder's device.

    Raises `OutputRejectedError` when a sample is not finite.
    """
    channels = decoder.config.latent_channels
    if latents.ndim != 3 or latents.shape[1] != channels:
        raise ValueError(f"audio latents must be [2, {channels}, Ta], not {list(latents.shape)}")
    device = decoder.latents_mean.device
    with torch.autocast(device.type, enabled=False), _full_float32_convolutions():
        waveform = decoder(decoder.denormalise(latents.to(device))).squeeze(1)  # [2, N]
    if not waveform.isfinite().all():
        raise OutputRejectedError("audio samples")
    return waveform.clamp(-1.0, 1.0)


@contextmanager
def _full_float32_convolutions() -> Iterator[None]:
    """Take TF32 from cuDNN's convolutions, for the whole process while it lasts, and give it back."""
    convolutions = torch.backends.cudnn.conv  # type: ignore[attr-defined]  # set by a module property
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision = before
