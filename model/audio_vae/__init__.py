"""The audio VAE: stereo waveform to latents and back."""

from model.audio_vae.checkpoint import (
    DECODER_PREFIXES,
    ENCODER_PREFIXES,
    audio_config_from_shapes,
    default_tensors,
    encoder_defaults,
)
from model.audio_vae.decode import decode_waveform
from model.audio_vae.decoder import AudioDecoder
from model.audio_vae.encode import encode_sound, fill_latents
from model.audio_vae.encoder import AudioEncoder
from model.audio_vae.track import fit_length, limit_loudness

__all__ = [
    "DECODER_PREFIXES",
    "ENCODER_PREFIXES",
    "AudioDecoder",
    "AudioEncoder",
    "audio_config_from_shapes",
    "decode_waveform",
    "default_tensors",
    "encode_sound",
    "encoder_defaults",
    "fill_latents",
    "fit_length",
    "limit_loudness",
]
