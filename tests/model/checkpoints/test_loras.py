"""LoRA files of every dialect: what they change, at which ranks and alphas, and what fits nowhere."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.checkpoints.descriptions import HeaderDescription, describe
from model.checkpoints.lora_keys import LoraKey, parse_lora_key
from queue_schemas.inspections import Inspection

Write = Callable[..., Path]
Inspect = Callable[[Path], Inspection]
PAIR = {"down": ("BF16", (4, 256), b"\1"), "up": ("BF16", (256, 4), b"\1")}


@pytest.mark.parametrize(
    ("name", "module", "role", "dialect"),
    [
        (
            "diffusion_model.blocks.10.attn.qkv_proj.lora_A.weight",
            "blocks.10.attn.qkv_proj", "down", "comfyui",
        ),
        (
            "diffusion_model.token_refiner.blocks.0.mlp.fc2.alpha",
            "token_refiner.blocks.0.mlp.fc2", "alpha", "comfyui",
        ),
        ("blocks.3.mlp.fc1.lora_B.weight", "blocks.3.mlp.fc1", "up", "bare"),
        ("lora_unet_blocks_12_attn_qkv_proj.lora_down.weight", "blocks.12.attn.qkv_proj", "down", "kohya"),
        (
            "lora_unet_token_refiner_blocks_1_mlp_fc2.alpha",
            "token_refiner.blocks.1.mlp.fc2", "alpha", "kohya",
        ),
        ("lora_unet_blocks_0_adaln_proj_linear.lora_up.weight", "blocks.0.adaln_proj.linear", "up", "kohya"),
        ("blocks.1.attn.out_proj.lora_A.default.weight", "blocks.1.attn.out_proj", "down", "diffsynth"),
        (
            "transformer.transformer_blocks.4.attn.to_q.lora_A.weight",
            "blocks.4.attn.qkv_proj[q]", "down", "diffusers",
        ),
        ("transformer_blocks.4.ff.net.0.proj.lora_B.default.weight", "blocks.4.mlp.fc1", "up", "diffusers"),
        (
            "token_refiner.refiner_blocks.0.attn.to_out.0.lora_B.weight",
            "token_refiner.blocks.0.attn.out_proj", "up", "diffusers",
        ),
        ("diffusion_model.final_layer.video_out.set_weight", "final_layer.video_out", "other", "comfyui"),
        ("blocks.0.mlp.fc1.diff", "blocks.0.mlp.fc1", "other", "bare"),
    ],
)  # fmt: skip
def test_a_key_of_any_dialect_names_its_module(name: str, module: str, role: Any, dialect: Any) -> None:
    assert parse_lora_key(name) == LoraKey(module, role, dialect)


@pytest.mark.parametrize(
    "name", ["blocks.1.foo.lora_A.weight", "lora_unet_blocks_1_foo.alpha", "blocks.0.mlp.fc1.weight", "alpha"]
)
def test_a_key_that_names_nothing_is_none(name: str) -> None:
    assert parse_lora_key(name) is None


def test_the_turbo_file_is_described_without_its_factors(
    sparse: Callable[[HeaderDescription], Path], inspect: Inspect
) -> None:
    found = inspect(sparse(describe("lora_turbo_rank128")))

    assert (found.family, found.variant, found.released_size) == ("lora", "lora_turbo_rank128", True)
    assert found.lora is not None
    assert found.lora.num_modules == 208
    assert found.lora.ranks == {"128": 156, "384": 52}
    assert len(found.lora.targets) == 8
    assert found.unmatched.count == 0


def test_alphas_are_read_and_a_missing_one_is_told(write_tensors: Write, inspect: Inspect) -> None:
    tensors = {}
    for module, alpha in (
        ("blocks.0.mlp.fc1", ("F32", (), struct.pack("<f", 8))),
        ("blocks.0.mlp.fc2", None),
    ):
        tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = PAIR["down"], PAIR["up"]
        if alpha is not None:
            tensors[f"{module}.alpha"] = alpha
    tensors["blocks.1.mlp.fc1.lora_A.weight"], tensors["blocks.1.mlp.fc1.lora_B.weight"] = (
        PAIR["down"],
        PAIR["up"],
    )
    tensors["blocks.1.mlp.fc1.alpha"] = ("BF16", (1,), struct.pack("<f", 1.5)[2:])

    lora = inspect(write_tensors(tensors)).lora

    assert lora is not None
    assert lora.alphas == {"1.5": 1, "8": 1, "none": 1}
    assert lora.ranks == {"4": 3}


def test_half_a_pair_and_factors_that_do_not_multiply_are_problems(
    write_tensors: Write, inspect: Inspect
) -> None:
    tensors = {
        "blocks.0.mlp.fc1.lora_A.weight": PAIR["down"],
        "blocks.0.mlp.fc2.lora_A.weight": PAIR["down"],
        "blocks.0.mlp.fc2.lora_B.weight": ("BF16", (256, 5), b"\1"),
        "blocks.0.what.lora_B.weight": PAIR["up"],
    }

    found = inspect(write_tensors(tensors))

    assert any("lacks its up factor" in problem for problem in found.problems)
    assert any("are no [r, I] and [O, r]" in problem for problem in found.problems)
    assert found.unmatched.names == ("blocks.0.what.lora_B.weight",)


def test_adaln_pairs_of_the_full_width_and_head_banks_are_noted(
    write_tensors: Write, inspect: Inspect
) -> None:
    tensors = {
        "blocks.0.adaln_proj.linear.lora_A.weight": ("BF16", (4, 2688), b"\1"),
        "blocks.0.adaln_proj.linear.lora_B.weight": ("BF16", (96768, 4), b"\1"),
        "diffusion_model.final_layer.video_out.set_weight": ("BF16", (96, 256), b"\1"),
    }

    found = inspect(write_tensors(tensors, metadata={"baked_scale": "1"}))

    assert found.lora is not None
    assert (found.lora.adaln_width, found.lora.other_deltas.count) == (2688, 1)
    assert [note.partition(":")[0] for note in found.notes] == [
        "its metadata says that the scale is already in the factors (baked_scale)",
        "its AdaLN pairs are 2688 wide",
        "it also replaces or adds whole tensors",
    ]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "loads onto a transformer of its sizes"),
        ({"blocks.0.mlp.fc2.diff": ("BF16", (256, 128), b"\1")}, "loads onto a transformer of its sizes"),
        ({"blocks.0.mlp.fc2.set_weight": ("BF16", (4, 4), b"\1")}, "1 tensors have no place"),
        ({"blocks.0.what.lora_A.weight": PAIR["down"]}, "1 tensors have no place"),
        ({"blocks.0.norm1.diff": ("BF16", (256,), b"\1")}, "1 tensors have no place"),
        ({"blocks.0.mlp.fc2.lora_A.weight": PAIR["down"]}, "it is malformed"),
        ({"blocks.0.mlp.fc2.diff": ("BF16", (4, 4), b"\1")}, "it is malformed"),
        ({"blocks.0.mlp.fc1.diff": ("BF16", (256, 256), b"\1")}, "it is malformed"),
        ({"blocks.0.mlp.fc1.alpha": ("F32", (2,), b"\1")}, "it is malformed"),
        ({"blocks.0.mlp.fc1.alpha": ("F64", (), b"\1")}, "it is malformed"),
        ({"blocks.0.mlp.fc1.lora_down.weight": PAIR["down"]}, "it is malformed"),
        (
            {
                "blocks.0.mlp.fc1.lora_A.weight": ("BF16", (5000, 256), b"\1"),
                "blocks.0.mlp.fc1.lora_B.weight": ("BF16", (256, 5000), b"\1"),
            },
            "it is malformed",
        ),
        ({"blocks.0.mlp.fc2.hada_w1_a": PAIR["down"]}, "it is malformed"),
    ],
)
def test_a_lora_of_which_a_part_has_no_place_is_told(
    more: dict[str, Any], why: str, write_tensors: Write, inspect: Inspect
) -> None:
    pair = {"blocks.0.mlp.fc1.lora_A.weight": PAIR["down"], "blocks.0.mlp.fc1.lora_B.weight": PAIR["up"]}

    found = inspect(write_tensors({**pair, **more}))

    assert found.runtime.why.startswith(why)
    assert found.runtime.loads == why.startswith("loads")


def pair_of(module: str) -> dict[str, Any]:
    return {f"{module}.lora_A.weight": PAIR["down"], f"{module}.lora_B.weight": PAIR["up"]}


def test_the_metadatas_alpha_counts_for_pairs_without_one_as_it_does_when_loaded(
    write_tensors: Write, inspect: Inspect
) -> None:
    lora = inspect(write_tensors(pair_of("blocks.0.mlp.fc1"), metadata={"lora_alpha": "8"})).lora

    assert lora is not None
    assert lora.alphas == {"8": 1}


def test_what_the_loader_refuses_in_the_metadata_is_a_problem(write_tensors: Write, inspect: Inspect) -> None:
    metadata = {"lora_adapter_metadata": '{"transformer.use_rslora": true}'}

    found = inspect(write_tensors(pair_of("blocks.0.mlp.fc1"), metadata=metadata))

    assert any("use_rslora" in problem for problem in found.problems)
