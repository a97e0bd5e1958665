"""The same numbers in every dialect make the same film, which is that of the plain merged weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lora_numbers import ALPHA, FULL, WRITERS, LoraNumbers, draw_lora, load, make_transformer
from torch import Tensor

from model.checkpoints.header import read_header
from model.dit import H3Transformer
from model.lora.plan import plan_lora, targets_of
from queue_schemas.loras import JobLora

Velocity = Callable[[H3Transformer], Tensor]
Measure = Callable[[Tensor, Tensor], float]
TOLERANCE = 1e-6
"""Float32, relative L2 of all velocities; 5e-7 was the most that was seen: sums in another order."""


@pytest.fixture(scope="module")
def lora() -> LoraNumbers:
    return draw_lora(FULL, seed=2, adaln=True)


def merged(lora: LoraNumbers, *, strength: float, into: H3Transformer | None = None) -> H3Transformer:
    transformer = into or make_transformer()
    for module in lora.pairs:
        transformer.get_submodule(module).weight += strength * lora.delta(module)
    return transformer


@pytest.mark.parametrize("dialect", WRITERS)
def test_every_dialect_makes_what_the_merged_weights_make(
    dialect: str, lora: LoraNumbers, velocity: Velocity, relative_l2: Measure, tmp_path: Path
) -> None:
    transformer = make_transformer()
    loras = load(transformer, lora.write(tmp_path / "x.safetensors", dialect))

    loras.use([JobLora(name="x", strength=0.8)])

    wanted = velocity(merged(lora, strength=0.8))
    assert relative_l2(velocity(transformer), wanted) < TOLERANCE
    assert relative_l2(velocity(make_transformer()), wanted) > 0.1


def test_a_strength_changes_without_loading_and_none_leaves_the_base_bit_for_bit(
    lora: LoraNumbers, velocity: Velocity, relative_l2: Measure, tmp_path: Path
) -> None:
    transformer, base = make_transformer(), velocity(make_transformer())
    loras = load(transformer, lora.write(tmp_path / "x.safetensors", "comfyui"))

    for strength in (0.3, -1.0):
        loras.use([JobLora(name="x", strength=strength)])
        assert relative_l2(velocity(transformer), velocity(merged(lora, strength=strength))) < TOLERANCE
    for off in ([], [JobLora(name="x", strength=0.0)]):
        loras.use(off)
        assert torch.equal(velocity(transformer), base)


def test_several_loras_add_up(velocity: Velocity, relative_l2: Measure, tmp_path: Path) -> None:
    first, second = draw_lora(FULL, seed=2), draw_lora(FULL, seed=3)
    transformer = make_transformer()
    loras = load(
        transformer,
        first.write(tmp_path / "first.safetensors", "comfyui"),
        second.write(tmp_path / "second.safetensors", "diffusers"),
    )

    loras.use([JobLora(name="second", strength=0.4), JobLora(name="first", strength=0.7)])

    both = merged(second, strength=0.4, into=merged(first, strength=0.7))
    assert relative_l2(velocity(transformer), velocity(both)) < TOLERANCE
    loras.use([JobLora(name="first", strength=0.7)])
    assert relative_l2(velocity(transformer), velocity(merged(first, strength=0.7))) < TOLERANCE


@pytest.mark.parametrize(
    ("dialect", "told"),
    [
        ("comfyui", "comfyui"), ("bare", "bare"), ("kohya", "kohya"), ("diffsynth", "diffsynth"),
        ("peft's own", "diffusers"),
    ],
)  # fmt: skip
def test_the_plan_names_the_dialect_and_counts_every_tensor(
    dialect: str, told: str, lora: LoraNumbers, tmp_path: Path
) -> None:
    header = read_header(lora.write(tmp_path / "x.safetensors", dialect))

    plan = plan_lora(header, targets_of(make_transformer()))

    assert plan.dialects == [told]
    assert (plan.matched, plan.total, len(plan.deltas)) == (len(header.tensors), len(header.tensors), 14)


@pytest.mark.parametrize(
    ("metadata", "strength"),
    [
        ({}, 4 / ALPHA),
        ({"alpha": "2"}, 1.0),
        ({"alpha": "2", "baked_scale": "0.5"}, 4 / ALPHA),
        ({"lora_adapter_metadata": '{"transformer.lora_alpha": 2, "transformer.r": 4}'}, 1.0),
    ],
)
def test_without_alphas_the_metadata_decides_and_else_the_factor_is_1(
    metadata: dict[str, str],
    strength: float,
    velocity: Velocity,
    relative_l2: Measure,
    tmp_path: Path,
) -> None:
    lora = draw_lora(FULL, seed=2)
    unscaled = LoraNumbers(
        pairs={m: {p: (a, b * 4 / ALPHA) for p, (a, b) in parts.items()} for m, parts in lora.pairs.items()}
    )
    transformer = make_transformer()
    loras = load(transformer, unscaled.write(tmp_path / "x.safetensors", "diffusers", metadata=metadata))

    loras.use([JobLora(name="x", strength=0.5)])

    assert relative_l2(velocity(transformer), velocity(merged(lora, strength=0.5 * strength))) < TOLERANCE
