"""The same files through diffusers 0.42.1 and PEFT 0.21, beside the equal diffusers transformer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_numbers import FULL, draw_lora, load
from torch import Tensor

from model.dit import H3Transformer
from queue_schemas.loras import JobLora

pytest.importorskip("peft")


@pytest.mark.parametrize("dialect", ["comfyui", "bare", "kohya", "diffsynth", "diffusers", "peft's own"])
def test_a_file_makes_here_what_diffusers_and_peft_make_of_it(
    dialect: str,
    make_twins: Callable[..., Any],
    request_rows: dict[str, Any],
    velocity: Callable[[H3Transformer], Tensor],
    tmp_path: Path,
) -> None:
    from diffusers.loaders import MiniMaxH3LoraLoaderMixin

    path = draw_lora(FULL, seed=2, adaln=True).write(tmp_path / "x.safetensors", dialect)
    twins = make_twins(FULL, 1)
    converted = MiniMaxH3LoraLoaderMixin.lora_state_dict(str(path))
    twins.theirs.load_lora_adapter(converted, prefix="transformer", adapter_name="x")
    twins.theirs.set_adapters(["x"], [0.7])

    load(twins.ours, path).use([JobLora(name="x", strength=0.7)])

    wanted = torch.cat([part.flatten() for part in twins.their_velocity(**request_rows)])
    found = velocity(twins.ours)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-6
