"""The video VAE, decode side: latents in, frames out, part by part."""

from model.video_vae.checkpoint import (
    ENCODER_PREFIXES,
    default_tensors,
    parameter_dtypes,
    row_order,
    video_config_from_shapes,
)
from model.video_vae.clips import plan_clips
from model.video_vae.decode import decode_frames, decode_pixels
from model.video_vae.decoder import VideoDecoder

__all__ = [
    "ENCODER_PREFIXES",
    "VideoDecoder",
    "decode_frames",
    "decode_pixels",
    "default_tensors",
    "parameter_dtypes",
    "plan_clips",
    "row_order",
    "video_config_from_shapes",
]
