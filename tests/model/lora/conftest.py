"""One fixed request for LoRA tests, and what a transformer answers to it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))  # tests/ is no package

from lora_numbers import FULL

from model.attention import resolve_attention
from model.dit import H3Transformer
from model.packing import pack, row_timesteps
from queue_schemas.conventions import COMFYUI
from queue_schemas.geometry import LatentShape

NUM_TEXT = 7


@pytest.fixture(scope="session")
def request_rows() -> dict[str, Any]:
    """Rows, timesteps and layout of the request; `text_embeds` come before `condition_proj`."""
    shape, generator = LatentShape(frames=3, height=4, width=6, audio=5), torch.Generator().manual_seed(5)
    layout = pack(NUM_TEXT, shape)
    timesteps, timestep_index = row_timesteps(layout, t_video=4 / 16, t_audio=10 / 16)
    return {
        "video_rows": torch.randn(shape.video_tokens, FULL.video_row_dim, generator=generator),
        "audio_rows": torch.randn(shape.audio_tokens, FULL.audio_channels, generator=generator),
        "text_embeds": torch.randn(NUM_TEXT, FULL.text_dim, generator=generator),
        "timesteps": timesteps,
        "timestep_index": timestep_index,
        "layout": layout,
    }


@pytest.fixture(scope="session")
def velocity(request_rows: dict[str, Any]) -> Callable[[H3Transformer], Tensor]:
    """Run a transformer on the request; return all velocities in one row."""
    _, attention = resolve_attention("sdpa", torch.device("cpu"))
    rows = {name: value for name, value in request_rows.items() if name != "text_embeds"}

    def run(transformer: H3Transformer) -> Tensor:
        with torch.inference_mode():
            found = transformer(
                **rows,
                text=transformer.encode_text(request_rows["text_embeds"], attention=attention),
                rope=transformer.rope_table(request_rows["layout"]),
                attention=attention,
                conventions=COMFYUI,
            )
        return torch.cat([part.flatten() for part in found])

    return run
