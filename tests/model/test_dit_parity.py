"""The transformer against diffusers 0.42.1, float32, the same random weights through the layout's mapping."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention import resolve_attention
from model.config import TransformerConfig
from model.packing import pack, row_timesteps
from queue_schemas.conventions import COMFYUI, DIFFUSERS, Conventions
from queue_schemas.geometry import LatentShape

# Reached 2.3e-7 at most over these cases.
TOLERANCE = 1e-5

SMALL = TransformerConfig(
    hidden_size=48,
    num_heads=4,
    head_dim=32,
    num_layers=3,
    ffn_dim=80,
    text_dim=40,
    time_freq_dim=16,
    time_hidden_dim=48,
    time_embed_dim=24,
    rope_freq_dim=4,
)
TINY = TransformerConfig(
    hidden_size=24,
    num_heads=2,
    head_dim=16,
    num_layers=2,
    ffn_dim=32,
    latent_channels=4,
    audio_channels=6,
    text_dim=8,
    time_freq_dim=8,
    time_hidden_dim=24,
    time_embed_dim=16,
    rope_freq_dim=2,
)
WIDE_HEADS = TransformerConfig(
    hidden_size=64,
    num_heads=2,
    num_layers=2,
    num_refiner_layers=1,
    ffn_dim=96,
    text_dim=32,
    time_freq_dim=32,
    time_hidden_dim=64,
    time_embed_dim=20,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    config: TransformerConfig
    num_text: int
    shape: LatentShape
    t_video: float
    t_audio: float


CASES = {
    "m2": Case(
        config=TINY,
        num_text=4,
        shape=LatentShape(frames=2, height=4, width=4, audio=3),
        t_video=0.3,
        t_audio=0.7,
    ),
    "m1": Case(
        config=SMALL,
        num_text=7,
        shape=LatentShape(frames=2, height=4, width=6, audio=8),
        t_video=0.0,
        t_audio=0.0,
    ),
    "longer": Case(
        config=SMALL,
        num_text=19,
        shape=LatentShape(frames=7, height=8, width=6, audio=37),
        t_video=0.2,
        t_audio=0.5,
    ),
    "late": Case(
        config=WIDE_HEADS,
        num_text=1,
        shape=LatentShape(frames=2, height=2, width=8, audio=8),
        t_video=0.9995,
        t_audio=0.9999,
    ),
    "early": Case(
        config=WIDE_HEADS,
        num_text=33,
        shape=LatentShape(frames=2, height=10, width=4, audio=8),
        t_video=0.013,
        t_audio=0.05,
    ),
}


@pytest.mark.parametrize("conventions", [DIFFUSERS, COMFYUI], ids=["diffusers", "comfyui"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_velocity_equals_that_of_diffusers(
    make_twins: Callable[[TransformerConfig, int], Any],
    relative_l2: Callable[[Tensor, Tensor], float],
    case: Case,
    conventions: Conventions,
) -> None:
    config, num_text, shape = case.config, case.num_text, case.shape
    twins = make_twins(config, 11)
    draw = torch.Generator().manual_seed(5)
    text_tags = (torch.arange(num_text) % 3 != 1).to(torch.int64)  # vision rows (0) among text rows (1)
    layout = pack(num_text, shape, text_tags=text_tags)
    timesteps, timestep_index = row_timesteps(layout, t_video=case.t_video, t_audio=case.t_audio)
    video_rows = torch.randn(shape.video_tokens, config.video_row_dim, generator=draw)
    audio_rows = torch.randn(shape.audio_tokens, config.audio_channels, generator=draw)
    text_embeds = torch.randn(num_text, config.text_dim, generator=draw)
    _, attention = resolve_attention("auto", torch.device("cpu"))

    video, audio = twins.ours(
        video_rows=video_rows,
        audio_rows=audio_rows,
        text=twins.ours.encode_text(text_embeds, attention=attention),
        timesteps=timesteps,
        timestep_index=timestep_index,
        layout=layout,
        rope=twins.ours.rope_table(layout),
        attention=attention,
        conventions=conventions,
    )

    wanted_video, wanted_audio = twins.their_velocity(
        video_rows=video_rows,
        audio_rows=audio_rows,
        text_embeds=text_embeds,
        timesteps=timesteps,
        timestep_index=timestep_index,
        layout=layout,
    )
    assert video.dtype == audio.dtype == torch.float32
    assert relative_l2(video, wanted_video) <= TOLERANCE
    assert relative_l2(audio, wanted_audio) <= TOLERANCE
