"""A job's media brought to its network as `H3Pipeline.generate` does it, with any encoders."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from media.prepared import PreparedMedia
from model.attention import resolve_attention
from model.conditions import (
    Condition,
    EncodeFilm,
    EncodeSound,
    bind,
    encode_condition,
    in_packed_order,
    show,
    watching,
)
from model.denoise import denoise
from model.dit import H3Transformer
from model.latents import Latents
from model.network import PackedNetwork
from model.pipeline import plan_job
from model.text_encoder.presentation import Presentation, present
from model.text_encoder.tokenizer import Tokenizer
from queue_schemas.conventions import PRESETS
from queue_schemas.jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Conditioned:
    """What stands before the first step."""

    presentation: Presentation
    text: Tensor
    conditions: list[Condition]
    network: PackedNetwork
    noise: Latents


def conditioned(
    job: Job,
    media: Sequence[PreparedMedia],
    *,
    transformer: H3Transformer,
    tokenizer: Tokenizer,
    text_encoder: Any,
    encode_film: EncodeFilm,
    encode_sound: EncodeSound,
) -> Conditioned:
    conventions = PRESETS[job.conventions]
    ordered = in_packed_order(job, media, conventions=conventions)
    presentation = present(
        job.prompt, [show(each) for each in ordered], tokenizer=tokenizer, conventions=conventions
    )
    text = text_encoder.encode(
        presentation, see=watching(text_encoder.encode_vision, ordered, presentation=presentation)
    )
    conditions = [
        encode_condition(
            each,
            film_frames=job.frames,
            conventions=conventions,
            encode_film=encode_film,
            encode_sound=encode_sound,
        )
        for each in ordered
    ]
    network, noise = bind(
        job,
        transformer,
        text_embeds=text,
        presentation=presentation,
        conditions=conditions,
        attention=resolve_attention("auto", torch.device("cpu"))[1],
    )
    return Conditioned(
        presentation=presentation, text=text, conditions=conditions, network=network, noise=noise
    )


def denoised(job: Job, found: Conditioned) -> Latents:
    """Run all steps of a job."""
    conventions = PRESETS[job.conventions]
    return denoise(
        found.network,
        noise=found.noise,
        plan=plan_job(job),
        sampler=job.sampler,
        conventions=conventions,
        compute_dtype=found.network.transformer.compute_dtype,
        on_progress=lambda event: None,
        cancelled=lambda: False,
    ).latents
