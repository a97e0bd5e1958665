"""The video VAE: frames to latents and back, part by part."""

from model.video_vae.checkpoint import (
    DECODER_PREFIXES,
    ENCODER_PREFIXES,
    default_statistics,
    default_tensors,
    parameter_dtypes,
    row_order,
    video_config_from_shapes,
)
from model.video_vae.clips import plan_clips
from model.video_vae.decode import decode_frames, decode_pixels
from model.video_vae.decoder import VideoDecoder
from model.video_vae.encode import encode_clip
from model.video_vae.encoder import VideoEncoder

__all__ = [
    "DECODER_PREFIXES",
    "ENCODER_PREFIXES",
    "VideoDecoder",
    "VideoEncoder",
    "decode_frames",
    "decode_pixels",
    "default_statistics",
    "default_tensors",
    "encode_clip",
    "parameter_dtypes",
    "plan_clips",
    "row_order",
    "video_config_from_shapes",
]
