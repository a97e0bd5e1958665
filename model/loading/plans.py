"""What the files' headers promise: each model's architecture, held against all names and shapes of its file.

Nothing of a payload is read and nothing of its size allocated, so a wrong file is refused in milliseconds.
"""

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import nn

from model import audio_vae, video_vae
from model.audio_vae import AudioDecoder
from model.checkpoints.header import Header
from model.config import H3Config, TextEncoderConfig
from model.dit import H3Transformer
from model.dit.checkpoint import transformer_config_from_shapes
from model.loading.files import ResidentFiles
from model.loading.tensors import refuse_quantised, shapes_of, wrapper_prefix
from model.shapes import check_rules, check_shapes
from model.text_encoder.encoder import check_exact, config_from_shapes, expected_shapes
from model.video_vae import VideoDecoder
from queue_schemas import geometry

M = TypeVar("M", bound=nn.Module)


def check_files(files: ResidentFiles) -> H3Config:
    """Return the four architectures, once each file holds its own exactly and all of them make one film.

    Reads no payload. Raises CheckpointFileError and CheckpointMismatchError.
    """
    config = H3Config(
        transformer=plan_transformer(files.transformer, compute_dtype=torch.bfloat16).config,
        text_encoder=plan_text_encoder(files.text_encoder),
        video_vae=plan_video_decoder(files.video_vae).config,
        audio_vae=plan_audio_decoder(files.audio_vae).config,
    )
    check_fit(config, files)
    return config


def check_fit(config: H3Config, files: ResidentFiles) -> None:
    """Refuse models that cannot work together or on H3's latents. Raises CheckpointMismatchError."""
    transformer, text = config.transformer, config.text_encoder
    video, audio = config.video_vae, config.audio_vae
    hop = math.prod(audio.decoder_rates)
    check_rules(
        files.transformer.path,
        {
            f"condition_proj.weight: takes text features {transformer.text_dim} wide, and"
            f" {files.text_encoder.path} gives {text.hidden_size}": transformer.text_dim == text.hidden_size
        },
    )
    check_rules(
        files.video_vae.path,
        {
            f"decoder.x_embedder.weight: {video.latent_channels} channels instead of"
            f" {geometry.VIDEO_LATENT_CHANNELS}": video.latent_channels == geometry.VIDEO_LATENT_CHANNELS,
            f"decoder.x_embedder.weight: a width of {video.decoder_dim} is no multiple of"
            f" {video.head_dim}": video.decoder_dim % video.head_dim == 0,
            f"decoder.proj_out.weight: patches of {video.patch_pixels} pixels instead of"
            f" {geometry.SPATIAL_RATIO}": video.patch_pixels == geometry.SPATIAL_RATIO,
        },
    )
    check_rules(
        files.audio_vae.path,
        {
            f"dec_in_proj.weight: {audio.latent_channels} channels instead of"
            f" {geometry.AUDIO_LATENT_CHANNELS}": audio.latent_channels == geometry.AUDIO_LATENT_CHANNELS,
            f"decoder.ups.0.0.weight: with the other stages {hop} samples a latent instead of"
            f" {geometry.AUDIO_HOP_SAMPLES}": hop == geometry.AUDIO_HOP_SAMPLES,
        },
    )


def plan_transformer(header: Header, *, compute_dtype: torch.dtype) -> H3Transformer:
    """Return the file's transformer without values: every tensor lies on the meta device."""
    refuse_quantised(header)
    prefix = wrapper_prefix(header.tensors)
    shapes = {name.removeprefix(prefix): shape for name, shape in header.shapes.items()}
    config = transformer_config_from_shapes(shapes, source=header.path)
    module = _on_meta(lambda: H3Transformer(config, compute_dtype=compute_dtype))
    check_shapes(shapes_of(module.state_dict()), shapes, source=header.path)
    return module


def plan_text_encoder(header: Header) -> TextEncoderConfig:
    refuse_quantised(header)
    config = config_from_shapes(header.shapes, source=header.path)
    check_exact(expected_shapes(config), header.shapes, source=header.path)
    return config


def plan_video_decoder(header: Header) -> VideoDecoder:
    refuse_quantised(header)
    config = video_vae.video_config_from_shapes(header.shapes, source=header.path)
    module = _on_meta(lambda: VideoDecoder(config))
    _check_decoder(module, header, video_vae.ENCODER_PREFIXES, optional=video_vae.default_tensors(config))
    return module


def plan_audio_decoder(header: Header) -> AudioDecoder:
    refuse_quantised(header)
    config = audio_vae.audio_config_from_shapes(header.shapes, source=header.path)
    module = _on_meta(lambda: AudioDecoder(config))
    _check_decoder(module, header, audio_vae.ENCODER_PREFIXES, optional=audio_vae.default_tensors(config))
    return module


def _check_decoder(
    module: nn.Module, header: Header, ignored: tuple[str, ...], *, optional: Iterable[str]
) -> None:
    """Check all of a VAE file's names and shapes but those of its encoder."""
    own = {name: shape for name, shape in header.shapes.items() if not name.startswith(ignored)}
    check_shapes(shapes_of(module.state_dict()), own, source=header.path, optional=set(optional))


def _on_meta(build: Callable[[], M]) -> M:
    with torch.device("meta"):
        return build()
