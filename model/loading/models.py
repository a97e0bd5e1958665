"""The four models of a resident set, loaded strictly onto one device in their dtypes.

Architectures come from the files' shapes, so a full, pruned, tiny or depth-cut file needs no flag.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from model import audio_vae, video_vae
from model.audio_vae import AudioDecoder
from model.checkpoints.header import Header
from model.dit import H3Transformer
from model.loading.files import ResidentFiles
from model.loading.plans import (
    check_files,
    plan_audio_decoder,
    plan_text_encoder,
    plan_transformer,
    plan_video_decoder,
)
from model.loading.tensors import assign_strict, check_constants, read_tensors
from model.rotary import inverse_frequencies
from model.shapes import check_rules
from model.text_encoder.encoder import TextEncoder
from model.text_encoder.tokenizer import Tokenizer, load_tokenizer
from model.video_vae import VideoDecoder

OnLoad = Callable[[str], None]
D = TypeVar("D", AudioDecoder, VideoDecoder)


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

    Every header is checked before any payload is read. Raises ModelError: nothing missing, left over,
    misshapen or not finite is let through.
    """
    on_progress("headers")
    config = check_files(files)
    on_progress("tokenizer")
    tokenizer = load_tokenizer(files.tokenizer_dir)
    tokenizer.require_fit(config.text_encoder.vocab_size)
    on_progress("text encoder")
    text_encoder = load_text_encoder(files.text_encoder, device=device, dtype=compute_dtype)
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
    module = plan_transformer(header, compute_dtype=compute_dtype)
    dtypes = {name: tensor.dtype for name, tensor in module.state_dict().items()}
    tensors = read_tensors(header, dtype_of=dtypes.get, device=device)
    frequencies = inverse_frequencies(module.config.rope_freq_dim, module.config.rope_theta)
    check_constants(tensors, {"rope.inv_freq": frequencies}, source=header.path)
    tensors["rope.inv_freq"] = frequencies.to(device)  # a file in bf16 or fp16 holds them rounded
    assign_strict(module, tensors, source=header.path)
    return module


def load_text_encoder(header: Header, *, device: torch.device, dtype: torch.dtype) -> TextEncoder:
    config = plan_text_encoder(header)
    tensors = read_tensors(header, dtype_of=lambda name: dtype, device=device)
    return TextEncoder.from_tensors(config, tensors, source=header.path, dtype=dtype)


def load_video_decoder(header: Header, *, device: torch.device, dtype: torch.dtype) -> VideoDecoder:
    """Load the decoder alone; the encoder's tensors in the same file are passed over by prefix."""
    module = plan_video_decoder(header)
    dtypes = video_vae.parameter_dtypes(module.config, dtype)
    tensors = read_tensors(
        header, dtype_of=dtypes.get, device=device, ignored_prefixes=video_vae.ENCODER_PREFIXES
    )
    defaults = video_vae.default_tensors(module.config)
    return _filled(module, tensors, defaults={n: t.to(dtypes[n]) for n, t in defaults.items()}, header=header)


def load_audio_decoder(header: Header, *, device: torch.device) -> AudioDecoder:
    """Load the decoder alone, in float32: any other dtype is audibly wrong."""
    module = plan_audio_decoder(header)
    tensors = read_tensors(
        header,
        dtype_of=lambda name: torch.float32,
        device=device,
        ignored_prefixes=audio_vae.ENCODER_PREFIXES,
    )
    defaults = audio_vae.default_tensors(module.config)
    filters = {name: taps for name, taps in defaults.items() if name.endswith(".filter")}
    check_constants(tensors, filters, source=header.path)
    return _filled(module, tensors, defaults=defaults, header=header)


def _filled(module: D, tensors: Mapping[str, Tensor], *, defaults: Mapping[str, Tensor], header: Header) -> D:
    """Give a VAE decoder its tensors, and defaults where the file has none."""
    device = next(iter(tensors.values())).device
    whole = {**{name: tensor.to(device) for name, tensor in defaults.items()}, **tensors}
    check_rules(
        header.path, {"latents_std: a spread that is not above 0": bool((whole["latents_std"] > 0).all())}
    )
    assign_strict(module, whole, source=header.path)
    return module
