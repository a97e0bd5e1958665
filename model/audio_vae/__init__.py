"""The audio VAE, decode side: latents in, stereo waveform out."""

from model.audio_vae.checkpoint import ENCODER_PREFIXES, audio_config_from_shapes, default_tensors
from model.audio_vae.decode import decode_waveform
from model.audio_vae.decoder import AudioDecoder
from model.audio_vae.track import fit_length, limit_loudness

__all__ = [
    "ENCODER_PREFIXES",
    "AudioDecoder",
    "audio_config_from_shapes",
    "decode_waveform",
    "default_tensors",
    "fit_length",
    "limit_loudness",
]
