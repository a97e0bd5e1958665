"""The models of a resident set, loaded strictly onto one device in their dtypes.

Architectures come from the files' shapes, so a full, pruned, tiny or depth-cut file needs no flag.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model import audio_vae, video_vae
from model.audio_vae import AudioDecoder, AudioEncoder
from model.checkpoints.header import Header, OpenCheckpoint
from model.checkpoints.header_text import TensorEntry
from model.checkpoints.holes import refuse_holes
from model.checkpoints.names import Layout
from model.dit import H3Transformer
from model.dit.dtypes import round_islands
from model.dit.row_order import row_order
from model.dit.streaming import is_streamed
from model.errors import EncoderMissingError
from model.loading.assign import Assignment, RowOrder
from model.loading.files import ResidentFiles
from model.loading.matching import Piece
from model.loading.plans import (
    M,
    Plan,
    Plans,
    TextPlan,
    plan_audio_decoder,
    plan_audio_encoder,
    plan_text_encoder,
    plan_transformer,
    plan_video_decoder,
    plan_video_encoder,
)
from model.loading.tensors import check_constants, read_tensor, view_stored
from model.loading.transfer import Reading
from model.rotary import inverse_frequencies
from model.shapes import check_rules
from model.text_encoder.encoder import TextEncoder
from model.text_encoder.tokenizer import Tokenizer, load_tokenizer
from model.video_vae import VideoDecoder, VideoEncoder

OnLoad = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Models:
    """What stays resident."""

    tokenizer: Tokenizer
    text_encoder: TextEncoder
    transformer: H3Transformer
    video_decoder: VideoDecoder
    audio_decoder: AudioDecoder
    video_encoder: VideoEncoder | None
    """None, as of the audio VAE's: its file holds the decoder alone (`EncoderMissingError`)."""
    audio_encoder: AudioEncoder | None
    ref2va_transformer: H3Transformer | None = None
    """Where a set has one for each task; `transformer` is then that of fl2va, and makes t2va."""


def load_models(
    files: ResidentFiles,
    plans: Plans,
    *,
    device: torch.device,
    vae_dtype: torch.dtype,
    on_progress: OnLoad,
) -> Models:
    """Load all as `check_files` planned them; `on_progress` is told each role before its file is read.

    The text encoder computes in the transformer's dtype. Raises ModelError: nothing missing, left over,
    misshapen, never written or not finite is let through.
    """
    on_progress("tokenizer")
    tokenizer = Tokenizer.tiny() if files.has_tiny_vocabulary else load_tokenizer(files.tokenizer_dir)
    tokenizer.require_fit(plans.text_encoder.config.vocab_size)
    on_progress("text encoder")
    text_encoder = read_text_encoder(
        plans.text_encoder, device=device, dtype=plans.transformer.module.compute_dtype
    )
    on_progress("transformer")
    transformer, second = read_transformer(plans.transformer, device=device), None
    if plans.ref2va_transformer is not None:
        on_progress("ref2va transformer")
        second = read_transformer(plans.ref2va_transformer, device=device)
    on_progress("video VAE")
    video_decoder = read_video_decoder(plans.video_vae, device=device, dtype=vae_dtype)
    video, audio = plans.video_encoder, plans.audio_encoder
    video_encoder = None if video is None else read_video_encoder(video, device=device)
    on_progress("audio VAE")
    audio_decoder = read_audio_decoder(plans.audio_vae, device=device)
    audio_encoder = None if audio is None else read_audio_encoder(audio, device=device)
    return Models(
        tokenizer=tokenizer,
        text_encoder=text_encoder,
        transformer=transformer,
        video_decoder=video_decoder,
        audio_decoder=audio_decoder,
        video_encoder=video_encoder,
        audio_encoder=audio_encoder,
        ref2va_transformer=second,
    )


def require_encoder(encoder: M | None, role: str, *, header: Header) -> M:
    """Return the encoder of `role`'s file, which a job needs. Raises EncoderMissingError."""
    if encoder is None:
        raise EncoderMissingError(role, source=header.path)
    return encoder


def load_transformer(
    header: Header,
    *,
    device: torch.device,
    compute_dtype: torch.dtype,
    layout: Layout | None = None,
    islands_as_comfyui: bool = False,
) -> H3Transformer:
    """Check and read one file of either layout, quantised or not.

    `layout` must be given for MiniMax' own shards, which no tensor tells from ComfyUI's files.
    """
    plan = plan_transformer(header, compute_dtype=compute_dtype, layout=layout)
    refuse_holes(header)
    return read_transformer(plan, device=device, islands_as_comfyui=islands_as_comfyui)


def read_transformer(
    plan: Plan[H3Transformer], *, device: torch.device, islands_as_comfyui: bool = False
) -> H3Transformer:
    """Read what a plan found.

    `islands_as_comfyui` rounds the float32 linears of a quantised file to bfloat16, as ComfyUI does; kept in
    float32 they are more exact. On a GPU the full layout's AdaLN stays in host memory (`dit/streaming.py`).
    """
    module, config = plan.module, plan.module.config
    frequencies = inverse_frequencies(config.rope_freq_dim, config.rope_theta)
    _fill(
        plan,
        device=device,
        dtypes={name: tensor.dtype for name, tensor in module.state_dict().items()},
        row_order=lambda name: row_order(name, config, layout=plan.layout),
        in_host_memory=lambda name: device.type == "cuda" and is_streamed(name, config),
        defaults={"rope.inv_freq": frequencies},
    )
    stored = {"rope.inv_freq": module.rope.inv_freq}
    check_constants(stored, {"rope.inv_freq": frequencies}, source=plan.header.path)
    module.rope.inv_freq = frequencies.to(device)  # a file in bf16 or fp16 holds them rounded
    if islands_as_comfyui and any(piece.marker for piece in plan.pieces):
        round_islands(module)
    return module


def load_text_encoder(header: Header, *, device: torch.device, dtype: torch.dtype) -> TextEncoder:
    """Check and read one file, plain tensors in `dtype`."""
    plan = plan_text_encoder(header)
    refuse_holes(header)
    return read_text_encoder(plan, device=device, dtype=dtype)


def read_text_encoder(plan: TextPlan, *, device: torch.device, dtype: torch.dtype) -> TextEncoder:
    """Read what a plan found."""
    _fill(plan, device=device, dtypes=dict.fromkeys(plan.module.state_dict(), dtype))
    return TextEncoder(plan.config, plan.module, dtype=dtype)


def load_video_decoder(header: Header, *, device: torch.device, dtype: torch.dtype) -> VideoDecoder:
    """Check and read the decoder alone; the encoder's tensors are passed over by prefix."""
    plan = plan_video_decoder(header)
    refuse_holes(header)
    return read_video_decoder(plan, device=device, dtype=dtype)


def read_video_decoder(plan: Plan[VideoDecoder], *, device: torch.device, dtype: torch.dtype) -> VideoDecoder:
    """Read what a plan found."""
    module, config = plan.module, plan.module.config
    _fill(
        plan,
        device=device,
        dtypes=video_vae.parameter_dtypes(config, dtype),
        row_order=lambda name: video_vae.row_order(name, config, layout=plan.layout),
        defaults=video_vae.default_tensors(config),
    )
    _check_spread(module, plan.header)
    return module


def load_video_encoder(header: Header, *, device: torch.device) -> VideoEncoder | None:
    """Check and read the encoder alone, in float32; None where nothing of it is in the file."""
    plan = plan_video_encoder(header)
    refuse_holes(header)
    return None if plan is None else read_video_encoder(plan, device=device)


def read_video_encoder(plan: Plan[VideoEncoder], *, device: torch.device) -> VideoEncoder:
    """Read what a plan found."""
    defaults = video_vae.default_statistics(plan.module.config)
    _fill(plan, device=device, dtypes=_float32(plan.module), defaults=defaults)
    _check_spread(plan.module, plan.header)
    return plan.module


def load_audio_decoder(header: Header, *, device: torch.device) -> AudioDecoder:
    """Check and read the decoder alone, in float32: any other dtype is audibly wrong."""
    plan = plan_audio_decoder(header)
    refuse_holes(header)
    return read_audio_decoder(plan, device=device)


def read_audio_decoder(plan: Plan[AudioDecoder], *, device: torch.device) -> AudioDecoder:
    """Read what a plan found."""
    defaults = audio_vae.default_tensors(plan.module.config)
    _fill(plan, device=device, dtypes=_float32(plan.module), defaults=defaults)
    filters = {name: taps for name, taps in defaults.items() if name.endswith(".filter")}
    check_constants(plan.module.state_dict(), filters, source=plan.header.path)
    _check_spread(plan.module, plan.header)
    return plan.module


def load_audio_encoder(header: Header, *, device: torch.device) -> AudioEncoder | None:
    """Check and read the encoder alone, in float32; None where nothing of it is in the file."""
    plan = plan_audio_encoder(header)
    refuse_holes(header)
    return None if plan is None else read_audio_encoder(plan, device=device)


def read_audio_encoder(plan: Plan[AudioEncoder], *, device: torch.device) -> AudioEncoder:
    """Read what a plan found."""
    defaults = audio_vae.encoder_defaults(plan.module.config)
    _fill(plan, device=device, dtypes=_float32(plan.module), defaults=defaults)
    zeros = {name: value for name, value in defaults.items() if name.endswith(".zero_k_bias")}
    check_constants(plan.module.state_dict(), zeros, source=plan.header.path)
    _check_spread(plan.module, plan.header)
    return plan.module


def _float32(module: nn.Module) -> dict[str, torch.dtype]:
    return dict.fromkeys(module.state_dict(), torch.float32)


def _fill(
    plan: Plan[M],
    *,
    device: torch.device,
    dtypes: Mapping[str, torch.dtype],
    row_order: RowOrder = lambda name: None,
    defaults: Mapping[str, Tensor] | None = None,
    in_host_memory: Callable[[str], bool] = lambda name: False,
) -> None:
    """Read what a plan found, and give the module defaults where the file has none."""
    assignment = Assignment(plan.module, source=plan.header.path, dtypes=dtypes, row_order=row_order)
    hosted, resident = _split(plan.pieces, lambda piece: in_host_memory(piece.name))
    as_stored, changed = _split(resident, assignment.is_as_stored)
    entries = _entries(resident)
    with (
        OpenCheckpoint(plan.header.path, known=plan.header) as file,
        Reading(file, entries, device=device, apart=_entries(changed)) as reading,
    ):

        def take(name: str) -> Tensor:
            """Hand out each tensor once, so that what is cast is freed."""
            return view_stored(reading.data.pop(name), entries[name])

        given = {name: value.to(device, dtypes[name]) for name, value in (defaults or {}).items()}
        assignment.give_defaults(given)  # which what the file has replaces
        for piece in as_stored:  # while their bytes are on their way
            assignment.give(piece, take)
            reading.give_way()
        reading.wait()
        for piece in changed:
            assignment.give(piece, take)
        assignment.check()
        for piece in hosted:
            assignment.give_pinned(piece, lambda name: read_tensor(file, name, device=device))
    assignment.finish()


def _split(pieces: Iterable[Piece], chosen: Callable[[Piece], bool]) -> tuple[list[Piece], list[Piece]]:
    """Return the pieces that are chosen, and the others."""
    answers = [(piece, chosen(piece)) for piece in pieces]
    return [piece for piece, yes in answers if yes], [piece for piece, yes in answers if not yes]


def _entries(pieces: Iterable[Piece]) -> dict[str, TensorEntry]:
    """Return what the file has for these pieces, by its own names."""
    return {name: entry for piece in pieces for part in piece.parts for name, entry in part.tensors.values()}


def _check_spread(module: AudioDecoder | AudioEncoder | VideoDecoder | VideoEncoder, header: Header) -> None:
    rule = "latents_std: a spread that is not above 0"
    check_rules(header.path, {rule: bool((module.latents_std > 0).all())})
