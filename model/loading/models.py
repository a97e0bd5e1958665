"""The four models of a resident set, loaded strictly onto one device in their dtypes.

Architectures come from the files' shapes, so a full, pruned, tiny or depth-cut file needs no flag.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from model import audio_vae, video_vae
from model.audio_vae import AudioDecoder
from model.checkpoints.header import Header
from model.dit import H3Transformer, parameter_dtypes
from model.dit.checkpoint import transformer_config_from_shapes
from model.loading.files import ResidentFiles
from model.loading.tensors import assign_strict, read_tensors, wrapper_prefix
from model.text_encoder.encoder import TextEncoder, config_from_shapes
from model.text_encoder.tokenizer import Tokenizer, load_tokenizer
from model.video_vae import VideoDecoder

OnLoad = Callable[[str], None]
M = TypeVar("M", bound=nn.Module)


@dataclass(slots=True, kw_only=True)
class Models:
    """What stays resident."""

    tokenizer: Tokenizer
    text_encoder: TextEncoder
    transformer: H3Transformer
    video_decoder: VideoDecoder
    audio_decoder: AudioDecoder


def load_models(
    files: ResidentFiles,
    *,
    device: torch.device,
    compute_dtype: torch.dtype,
    vae_dtype: torch.dtype,
    on_progress: OnLoad,
) -> Models:
    """Load all four; `on_progress` is told each role before its file is read.

    Raises ModelError: nothing missing, left over or misshapen is let through.
    """
    on_progress("tokenizer")
    tokenizer = load_tokenizer(files.tokenizer_dir)
    on_progress("text encoder")
    text_encoder = load_text_encoder(files.text_encoder, device=device, dtype=compute_dtype)
    tokenizer.require_fit(text_encoder.config.vocab_size)
    on_progress("transformer")
    transformer = load_transformer(files.transformer, device=device, compute_dtype=compute_dtype)
    on_progress("video VAE")
    video_decoder = load_video_decoder(files.video_vae, device=device, dtype=vae_dtype)
    on_progress("audio VAE")
    audio_decoder = load_audio_decoder(files.audio_vae, device=device)
    return Models(
        tokenizer=tokenizer,
        text_encoder=text_encoder,
        transformer=transformer,
        video_decoder=video_decoder,
        audio_decoder=audio_decoder,
    )


def load_transformer(header: Header, *, device: torch.device, compute_dtype: torch.dtype) -> H3Transformer:
    config = transformer_config_from_shapes(_own_shapes(header), source=header.path)
    dtypes = parameter_dtypes(config, compute_dtype)
    module = _on_meta(lambda: H3Transformer(config, compute_dtype=compute_dtype))
    tensors = read_tensors(header, dtype_of=dtypes.get, device=device)
    assign_strict(module, tensors, source=header.path)
    return module


def load_text_encoder(header: Header, *, device: torch.device, dtype: torch.dtype) -> TextEncoder:
    config = config_from_shapes(header.shapes, source=header.path)
    tensors = read_tensors(header, dtype_of=lambda name: dtype, device=device)
    return TextEncoder.from_tensors(config, tensors, source=header.path, dtype=dtype)


def load_video_decoder(header: Header, *, device: torch.device, dtype: torch.dtype) -> VideoDecoder:
    """Load the decoder alone; the encoder's tensors in the same file are passed over by prefix."""
    config = video_vae.video_config_from_shapes(header.shapes, source=header.path)
    module = _on_meta(lambda: VideoDecoder(config))
    dtypes = video_vae.parameter_dtypes(config, dtype)
    tensors = read_tensors(
        header, dtype_of=dtypes.get, device=device, ignored_prefixes=video_vae.ENCODER_PREFIXES
    )
    defaults = {
        name: value.to(device, dtypes[name]) for name, value in video_vae.default_tensors(config).items()
    }
    assign_strict(module, {**defaults, **tensors}, source=header.path)
    return module


def load_audio_decoder(header: Header, *, device: torch.device) -> AudioDecoder:
    """Load the decoder alone, in float32: any other dtype is audibly wrong."""
    config = audio_vae.audio_config_from_shapes(header.shapes, source=header.path)
    module = _on_meta(lambda: AudioDecoder(config))
    tensors = read_tensors(
        header,
        dtype_of=lambda name: torch.float32,
        device=device,
        ignored_prefixes=audio_vae.ENCODER_PREFIXES,
    )
    defaults = {name: value.to(device) for name, value in audio_vae.default_tensors(config).items()}
    assign_strict(module, {**defaults, **tensors}, source=header.path)
    return module


def _own_shapes(header: Header) -> dict[str, tuple[int, ...]]:
    prefix = wrapper_prefix(header.tensors)
    return {name.removeprefix(prefix): shape for name, shape in header.shapes.items()}


def _on_meta(build: Callable[[], M]) -> M:
    with torch.device("meta"):
        return build()
