"""What the files' headers promise: each model's architecture, held against all names and forms of its file.

Of a payload only markers are read and nothing of its size is allocated, so a wrong file is refused at once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from torch import nn

from model import audio_vae, video_vae
from model.audio_vae import AudioDecoder, AudioEncoder
from model.checkpoints.header import Header
from model.checkpoints.holes import refuse_holes
from model.checkpoints.names import (
    DIFFUSERS_MARKS,
    RENAMINGS,
    Architecture,
    Layout,
    comfy_name,
    wrapper_prefix,
)
from model.checkpoints.stored import OwnName, own_shapes, read_stored
from model.config import H3Config, TextEncoderConfig
from model.dit import H3Transformer
from model.dit.checkpoint import transformer_config_from_shapes
from model.loading.files import ResidentFiles
from model.loading.matching import Piece, match
from model.shapes import check_rules
from model.text_encoder.encoder import build_on_meta
from model.text_encoder.layout import comfyui_name, config_from_shapes, module_name
from model.video_vae import VideoDecoder, VideoEncoder
from queue_schemas import geometry

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Generic[M]):
    """A model without values, its tensors on the meta device, and what its file has for each module."""

    header: Header
    module: M
    pieces: Sequence[Piece]
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPlan(Plan[nn.Module]):
    """Transformers' module knows its own configuration only."""

    config: TextEncoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Those of a resident set, checked; each can be loaded once, since loading fills its module."""

    transformer: Plan[H3Transformer]
    text_encoder: TextPlan
    video_vae: Plan[VideoDecoder]
    audio_vae: Plan[AudioDecoder]
    video_encoder: Plan[VideoEncoder] | None
    """None, as of the audio VAE's: the file holds the decoder alone."""
    audio_encoder: Plan[AudioEncoder] | None
    ref2va_transformer: Plan[H3Transformer] | None
    """None where one transformer makes every film."""

    @property
    def transformers(self) -> list[Plan[H3Transformer]]:
        return [plan for plan in (self.transformer, self.ref2va_transformer) if plan is not None]

    @property
    def config(self) -> H3Config:
        return H3Config(
            transformer=self.transformer.module.config,
            text_encoder=self.text_encoder.config,
            video_vae=self.video_vae.module.config,
            audio_vae=self.audio_vae.module.config,
        )


def check_files(files: ResidentFiles, *, compute_dtype: torch.dtype) -> Plans:
    """Return the plans, once each file holds its model exactly, whole, and all of them make one film.

    Raises CheckpointFileError and CheckpointMismatchError.
    """
    second = files.ref2va_transformer
    plans = Plans(
        text_encoder=plan_text_encoder(files.text_encoder),
        transformer=plan_transformer(files.transformer, compute_dtype=compute_dtype),
        video_vae=plan_video_decoder(files.video_vae),
        audio_vae=plan_audio_decoder(files.audio_vae),
        video_encoder=plan_video_encoder(files.video_vae),
        audio_encoder=plan_audio_encoder(files.audio_vae),
        ref2va_transformer=None if second is None else plan_transformer(second, compute_dtype=compute_dtype),
    )
    for plan in plans.transformers:
        own = replace(plans.config, transformer=plan.module.config)
        check_fit(own, replace(files, transformer=plan.header))
    for header in files.headers().values():
        refuse_holes(header)
    return plans


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


def plan_transformer(
    header: Header, *, compute_dtype: torch.dtype, layout: Layout | None = None
) -> Plan[H3Transformer]:
    """Match a transformer; `layout` must be said for MiniMax' own shards, which look like ComfyUI's files.

    Raises CheckpointFileError and CheckpointMismatchError.
    """
    layout = layout or layout_of("transformer", header)
    own_name = _own_name("transformer", layout)
    config = transformer_config_from_shapes(own_shapes(header, own_name=own_name), source=header.path)
    module = _on_meta(lambda: H3Transformer(config, compute_dtype=compute_dtype))
    computed = () if layout == "comfyui" else ("rope.inv_freq",)  # which only ComfyUI's files store
    pieces = match(module, read_stored(header, own_name=own_name), source=header.path, optional=computed)
    return Plan(header=header, module=module, pieces=pieces, layout=layout)


def plan_text_encoder(header: Header) -> TextPlan:
    """Match a text encoder, under ComfyUI's or the official names. Raises as `plan_transformer`."""
    config = config_from_shapes(header.shapes, source=header.path)
    module = build_on_meta(config)
    stored = read_stored(header, own_name=module_name)
    pieces = match(module, stored, source=header.path, shown=comfyui_name)
    return TextPlan(header=header, module=module, pieces=pieces, layout="comfyui", config=config)


def plan_video_decoder(header: Header) -> Plan[VideoDecoder]:
    """Match a video VAE's decoder, whatever of its encoder is there. Raises as `plan_transformer`."""
    layout = layout_of("video_vae", header)
    own_name = _own_name("video_vae", layout)
    config = video_vae.video_config_from_shapes(own_shapes(header, own_name=own_name), source=header.path)
    module = _on_meta(lambda: VideoDecoder(config))
    pieces = match(
        module,
        read_stored(header, own_name=own_name),
        source=header.path,
        ignored=video_vae.ENCODER_PREFIXES,
        optional=video_vae.default_tensors(config),
    )
    return Plan(header=header, module=module, pieces=pieces, layout=layout)


def plan_video_encoder(header: Header) -> Plan[VideoEncoder] | None:
    """Match a video VAE's encoder; None where nothing of it is there. Raises as `plan_transformer`."""
    layout = layout_of("video_vae", header)
    own_name = _own_name("video_vae", layout)
    config = video_vae.video_config_from_shapes(own_shapes(header, own_name=own_name), source=header.path)
    if config.encoder is None:
        return None
    module = _on_meta(lambda: VideoEncoder(config))
    pieces = match(
        module,
        read_stored(header, own_name=own_name),
        source=header.path,
        ignored=video_vae.DECODER_PREFIXES,
        optional=video_vae.default_statistics(config),
    )
    return Plan(header=header, module=module, pieces=pieces, layout=layout)


def plan_audio_decoder(header: Header) -> Plan[AudioDecoder]:
    """Match an audio VAE's decoder, whatever of its encoder is there. Raises as `plan_transformer`."""
    config = audio_vae.audio_config_from_shapes(header.shapes, source=header.path)
    module = _on_meta(lambda: AudioDecoder(config))
    pieces = match(
        module,
        read_stored(header, own_name=str),
        source=header.path,
        ignored=audio_vae.ENCODER_PREFIXES,
        optional=audio_vae.default_tensors(config),
    )
    return Plan(header=header, module=module, pieces=pieces, layout="comfyui")


def plan_audio_encoder(header: Header) -> Plan[AudioEncoder] | None:
    """Match an audio VAE's encoder; None where nothing of it is there. Raises as `plan_transformer`."""
    config = audio_vae.audio_config_from_shapes(header.shapes, source=header.path)
    if config.encoder is None:
        return None
    module = _on_meta(lambda: AudioEncoder(config))
    pieces = match(
        module,
        read_stored(header, own_name=str),
        source=header.path,
        ignored=audio_vae.DECODER_PREFIXES,
        optional=audio_vae.encoder_defaults(config),
    )
    return Plan(header=header, module=module, pieces=pieces, layout="comfyui")


def _own_name(architecture: Architecture, layout: Layout) -> OwnName:
    renaming = RENAMINGS.get((architecture, layout), ())
    return lambda name: comfy_name(name, renaming)


def layout_of(family: str, header: Header) -> Layout:
    """Tell diffusers' names from ComfyUI's."""
    mark = wrapper_prefix(header.tensors) + DIFFUSERS_MARKS[family][0]
    return "diffusers" if mark in header.tensors else "comfyui"


def _on_meta(build: Callable[[], M]) -> M:
    with torch.device("meta"):
        return build()
