"""Decode of one soundtrack: normalised latents to a waveform in [-1, 1], always in float32.

Lower precision is not offered: bfloat16 decodes come out some 20 dB too quiet. TF32, which cuDNN's
convolutions use by default, is switched off for the call, so that a GPU gives what the CPU gives to about
1e-6.

Shapes: Ta latent frames, N = 800 Ta samples.
"""

import torch
from torch import Tensor

from model.audio_vae.decoder import AudioDecoder
from model.errors import OutputRejectedError
from model.precision import full_float32_convolutions


@torch.no_grad()
def decode_waveform(decoder: AudioDecoder, latents: Tensor) -> Tensor:
    """Decode normalised `latents` [2, 32, Ta], left first, to float32 [2, N] on the decoder's device.

    Raises `OutputRejectedError` when a sample is not finite.
    """
    channels = decoder.config.latent_channels
    if latents.ndim != 3 or latents.shape[1] != channels:
        raise ValueError(f"audio latents must be [2, {channels}, Ta], not {list(latents.shape)}")
    device = decoder.latents_mean.device
    with torch.autocast(device.type, enabled=False), full_float32_convolutions():
        waveform = decoder(decoder.denormalise(latents.to(device))).squeeze(1)  # [2, N]
    if not waveform.isfinite().all():
        raise OutputRejectedError("audio samples")
    return waveform.clamp(-1.0, 1.0)
