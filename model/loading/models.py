"""The four models of a resident set, loaded strictly onto one device in their dtypes.

Architectures come from the files' shapes, so a full, pruned, tiny or depth-cut file needs no flag.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from model import audio_vae, video_vae
from model.audio_vae import AudioDecoder
from model.checkpoints.header import CheckpointFile, Header
from model.checkpoints.holes import refuse_holes
from model.checkpoints.names import Layout
from model.dit import H3Transformer
from model.dit.dtypes import round_islands
from model.dit.row_order import row_order
from model.dit.streaming import is_streamed
from model.loading.assign import RowOrder, assign
from model.loading.files import ResidentFiles
from model.loading.plans import (
    M,
    Plan,
    check_files,
    plan_audio_decoder,
    plan_text_encoder,
    plan_transformer,
    plan_video_decoder,
)
from model.loading.tensors import check_constants, read_tensors
from model.rotary import inverse_frequencies
from model.shapes import check_rules
from model.text_encoder.encoder import TextEncoder
from model.text_encoder.tokenizer import Tokenizer, load_tokenizer
from model.video_vae import VideoDecoder

OnLoad = Callable[[str], None]


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
    misshapen, never written or not finite is let through.
    """
    on_progress("headers")
    config = check_files(files)
    for header in files.headers().values():
        with CheckpointFile(header.path, known=header) as file:
            refuse_holes(file)
    on_progress("tokenizer")
    tokenizer = Tokenizer.tiny() if files.has_tiny_vocabulary else load_tokenizer(files.tokenizer_dir)
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


def load_transformer(
    header: Header,
    *,
    device: torch.device,
    compute_dtype: torch.dtype,
    layout: Layout | None = None,
    islands_as_comfyui: bool = False,
) -> H3Transformer:
    """Load either layout, quantised or not.

    `layout` must be given for MiniMax' own shards, which no tensor tells from ComfyUI's files.
    `islands_as_comfyui` rounds the float32 linears of a quantised file to bfloat16, as ComfyUI does; kept in
    float32 they are more exact. On a GPU the full layout's AdaLN stays in host memory (`dit/streaming.py`).
    """
    plan = plan_transformer(header, compute_dtype=compute_dtype, layout=layout)
    module, config = plan.module, plan.module.config
    frequencies = inverse_frequencies(config.rope_freq_dim, config.rope_theta)
    _fill(
        plan,
        header,
        device=device,
        dtypes={name: tensor.dtype for name, tensor in module.state_dict().items()},
        row_order=lambda name: row_order(name, config, layout=plan.layout),
        in_host_memory=lambda name: device.type == "cuda" and is_streamed(name, config),
        defaults={"rope.inv_freq": frequencies},
    )
    check_constants(module.state_dict(), {"rope.inv_freq": frequencies}, source=header.path)
    module.rope.inv_freq = frequencies.to(device)  # a file in bf16 or fp16 holds them rounded
    if islands_as_comfyui and any(piece.marker for piece in plan.pieces):
        round_islands(module)
    return module


def load_text_encoder(header: Header, *, device: torch.device, dtype: torch.dtype) -> TextEncoder:
    config, plan = plan_text_encoder(header)
    _fill(plan, header, device=device, dtypes=dict.fromkeys(plan.module.state_dict(), dtype))
    return TextEncoder(config, plan.module, dtype=dtype)


def load_video_decoder(header: Header, *, device: torch.device, dtype: torch.dtype) -> VideoDecoder:
    """Load the decoder alone; the encoder's tensors in the same file are passed over by prefix."""
    plan = plan_video_decoder(header)
    module, config = plan.module, plan.module.config
    _fill(
        plan,
        header,
        device=device,
        dtypes=video_vae.parameter_dtypes(config, dtype),
        row_order=lambda name: video_vae.row_order(name, config, layout=plan.layout),
        defaults=video_vae.default_tensors(config),
    )
    _check_spread(module, header)
    return module


def load_audio_decoder(header: Header, *, device: torch.device) -> AudioDecoder:
    """Load the decoder alone, in float32: any other dtype is audibly wrong."""
    plan = plan_audio_decoder(header)
    defaults = audio_vae.default_tensors(plan.module.config)
    dtypes = dict.fromkeys(plan.module.state_dict(), torch.float32)
    _fill(plan, header, device=device, dtypes=dtypes, defaults=defaults)
    filters = {name: taps for name, taps in defaults.items() if name.endswith(".filter")}
    check_constants(plan.module.state_dict(), filters, source=header.path)
    _check_spread(plan.module, header)
    return plan.module


def _fill(
    plan: Plan[M],
    header: Header,
    *,
    device: torch.device,
    dtypes: Mapping[str, torch.dtype],
    row_order: RowOrder = lambda name: None,
    defaults: Mapping[str, Tensor] | None = None,
    in_host_memory: Callable[[str], bool] = lambda name: False,
) -> None:
    """Read what a plan found, and give the module defaults where the file has none."""
    resident = [piece for piece in plan.pieces if not in_host_memory(piece.name)]
    names = [name for piece in resident for part in piece.parts for name, _ in part.tensors.values()]
    with CheckpointFile(header.path, known=header) as file:
        refuse_holes(file)
        stored = read_tensors(file, names, device=device)

        def read(name: str) -> Tensor:
            """Hand out each tensor once, so that what is cast is freed; others pass by the device singly."""
            return stored.pop(name) if name in stored else read_tensors(file, [name], device=device)[name]

        assign(
            plan.module,
            plan.pieces,
            read,
            source=header.path,
            dtypes=dtypes,
            row_order=row_order,
            in_host_memory=in_host_memory,
            defaults={name: value.to(device, dtypes[name]) for name, value in (defaults or {}).items()},
        )


def _check_spread(module: AudioDecoder | VideoDecoder, header: Header) -> None:
    rule = "latents_std: a spread that is not above 0"
    check_rules(header.path, {rule: bool((module.latents_std > 0).all())})
