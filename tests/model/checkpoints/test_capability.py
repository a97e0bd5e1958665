"""What the inspector says a loader does, held against what the loaders do with the same file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from model.checkpoints.descriptions import VARIANTS, describe
from model.checkpoints.header import read_header
from model.errors import ModelError
from model.loading.models import (
    load_audio_decoder,
    load_audio_encoder,
    load_text_encoder,
    load_transformer,
    load_video_decoder,
    load_video_encoder,
)
from model.rotary import inverse_frequencies
from model.synthetic.values import Values
from model.synthetic.writer import write_file
from queue_schemas.inspections import Inspection

Write = Callable[..., Path]
Inspect = Callable[[Path], Inspection]
CPU = torch.device("cpu")
MODELS = [variant for variant in VARIANTS if not variant.startswith("lora")]
LOADERS: dict[str, Callable[..., Any]] = {
    "transformer": lambda header: load_transformer(header, device=CPU, compute_dtype=torch.float32),
    "text_encoder": lambda header: load_text_encoder(header, device=CPU, dtype=torch.float32),
    "video_vae": lambda header: (
        load_video_decoder(header, device=CPU, dtype=torch.float32),
        load_video_encoder(header, device=CPU),
    ),
    "audio_vae": lambda header: (
        load_audio_decoder(header, device=CPU),
        load_audio_encoder(header, device=CPU),
    ),
}


def loads(found: Inspection) -> bool:
    assert found.family is not None
    try:
        LOADERS[found.family](read_header(Path(found.path)))
    except ModelError:
        return False
    return True


@pytest.mark.parametrize("variant", MODELS)
def test_a_whole_tiny_file_of_every_variant_loads_as_the_inspector_says(
    variant: str, tmp_path: Path, inspect: Inspect
) -> None:
    description = describe(variant, "tiny")
    path = tmp_path / "a.safetensors"
    write_file(path, description, Values(description).bytes)

    found = inspect(path)

    assert found.runtime.loads
    assert loads(found)


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a tensor missing": ("dit_pruned_bf16", {"blocks.0.norm1.weight": None}),
    "no frequencies": ("dit_full_bf16", {"rope.inv_freq": None}),
    "a tensor too many": ("dit_pruned_bf16", {"blocks.0.norm3.weight": ("BF16", (4,), b"\1")}),
    "gates of sparse attention": (
        "dit_pruned_bf16", {"blocks.0.attn.to_gate_compress.weight": ("BF16", (256, 256), b"\1")},
    ),
    "a final norm": ("te_qwen3vl_bf16", {"model.norm.weight": ("BF16", (256,), b"\1")}),
    "no scale": ("dit_pruned_nvfp4", {"blocks.0.mlp.fc1.weight_scale": None}),
    "no marker": ("dit_pruned_int8_convrot", {"blocks.0.mlp.fc1.comfy_quant": None}),
    "a format of others": (
        "dit_pruned_nvfp4", {"blocks.0.mlp.fc1.comfy_quant": ("U8", (19,), b'{"format": "mxfp8"}')},
    ),
    "part of an encoder": ("vae_audio_fp32", {"pre_block.norm3.bias": None}),
    "a tensor too many in an encoder": ("vae_video_fp16", {"encoder.norm_in.bias": ("F16", (32,), b"\1")}),
    "a zeroed marker": ("te_qwen3vl_nvfp4_awq", {"model.embed_tokens.comfy_quant": ("U8", (29,), b"\0")}),
}  # fmt: skip


LAYER = "blocks.0.mlp.fc1"
METADATA = "_quantization_metadata"


def described(**layers: str) -> str:
    return json.dumps({"format_version": "1.0", "layers": {n: {"format": f} for n, f in layers.items()}})


HELD_AGAINST: dict[str, tuple[str, dict[str, Any], dict[str, str], bool]] = {
    "a marker and the same in the metadata": (
        "dit_pruned_nvfp4", {}, {METADATA: described(**{LAYER: "nvfp4"})}, True,
    ),
    "a marker that contradicts the metadata": (
        "dit_pruned_nvfp4", {}, {METADATA: described(**{LAYER: "float8_e4m3fn"})}, False,
    ),
    "metadata of another version": (
        "dit_pruned_bf16", {}, {METADATA: '{"format_version": "9", "layers": {}}'}, False,
    ),
    "a key twice in the metadata": (
        "dit_pruned_bf16", {}, {METADATA: '{"format_version": "1.0", "layers": {}, "layers": {}}'}, False,
    ),
    "no layers in the metadata": (
        "dit_pruned_bf16", {}, {METADATA: '{"format_version": "1.0", "layers": {}}'}, True,
    ),
    "a module in the metadata that is not there": (
        "dit_pruned_bf16", {}, {METADATA: described(ghost="nvfp4")}, False,
    ),
    "a module without a name in the metadata": (
        "dit_pruned_bf16", {}, {METADATA: described(**{"": "nvfp4"})}, False,
    ),
    "a norm in the metadata": (
        "dit_pruned_bf16", {}, {METADATA: described(**{"blocks.0.norm1": "int8_tensorwise"})}, False,
    ),
    "a norm in F64": ("dit_pruned_bf16", {"blocks.0.norm1.weight": ("F64", (256,), b"\1")}, {}, False),
    "a norm in I32": ("dit_pruned_nvfp4", {"blocks.0.norm1.weight": ("I32", (256,), b"\1")}, {}, False),
    "a norm in F16": ("dit_pruned_nvfp4", {"blocks.0.norm1.weight": ("F16", (256,), b"\1")}, {}, True),
    "a bf16 file with the older scheme's sign": (
        "dit_pruned_bf16", {"scaled_fp8": ("F8_E4M3", (2,), b"\1")}, {}, True,
    ),
    "a sign of another float8": (
        "dit_pruned_bf16", {"scaled_fp8": ("F8_E5M2", (2,), b"\1")}, {}, False,
    ),
    "a scale under both its names": (
        "dit_pruned_fp8_scaled",
        {"scaled_fp8": ("F8_E4M3", (0,), b""), f"{LAYER}.scale_weight": ("F32", (), b"\1")}, {}, False,
    ),
    "an embedding in a linear's format": (
        "te_qwen3vl_bf16",
        {
            "model.embed_tokens.weight": ("F8_E4M3", (512, 256), b"\1"),
            "model.embed_tokens.weight_scale": ("F32", (), b"\1"),
            "model.embed_tokens.comfy_quant": ("U8", (27,), b'{"format": "float8_e4m3fn"}'),
        }, {}, False,
    ),
}  # fmt: skip
"""Variant, tensors changed, metadata, and whether that loads."""


@pytest.mark.parametrize("name", HELD_AGAINST)
def test_inspector_and_loader_read_markers_and_dtypes_alike(
    name: str, write_tensors: Write, inspect: Inspect
) -> None:
    variant, changes, metadata, expected = HELD_AGAINST[name]
    tensors: dict[str, Any] = {
        t.name: (t.dtype, t.shape, t.marker or b"\1") for t in describe(variant, "tiny").tensors
    }
    if "rope.inv_freq" in tensors:
        frequencies = inverse_frequencies(16, 10_000.0)
        tensors["rope.inv_freq"] = ("F32", tuple(frequencies.shape), frequencies.numpy().tobytes())

    found = inspect(write_tensors({**tensors, **changes}, metadata=metadata or None))

    assert (found.runtime.loads, loads(found)) == (expected, expected), found.problems


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_loader_refuses_the_inspector_says_is_not_loaded(
    name: str, write_tensors: Write, inspect: Inspect
) -> None:
    variant, changes = REFUSED[name]
    tensors: dict[str, Any] = {
        t.name: (t.dtype, t.shape, t.marker or b"\1") for t in describe(variant, "tiny").tensors
    }
    tensors = {key: value for key, value in {**tensors, **changes}.items() if value is not None}

    found = inspect(write_tensors(tensors))

    assert not found.runtime.loads
    assert not loads(found)


def test_zeros_in_place_of_weights_are_refused_by_both(write_tensors: Write, inspect: Inspect) -> None:
    tensors = {
        t.name: (t.dtype, t.shape, t.marker or b"\0") for t in describe("dit_pruned_nvfp4", "tiny").tensors
    }

    found = inspect(write_tensors(tensors))

    assert found.runtime.why == "parts of it were never written"
    assert not loads(found)


def test_unused_products_of_the_hardware_are_told_where_it_has_them(
    write_tensors: Write, inspect: Inspect
) -> None:
    tensors = {
        t.name: (t.dtype, t.shape, t.marker or b"\1") for t in describe("dit_pruned_nvfp4", "tiny").tensors
    }

    uses = {use.compute_capability: use.how for use in inspect(write_tensors(tensors)).runtime.gpus}

    assert uses["-"] == "weights stay packed and are decoded to float32 for each product"
    assert uses["9.0"] == "weights stay packed and are decoded to bf16 for each product"
    assert uses["12.0-12.1"].endswith("the GPU's own nvfp4 products are not used yet")
    assert "no bf16 tensor cores" in uses["7.5"]


def test_a_scale_without_its_weight_stands_for_no_parameters(write_tensors: Write, inspect: Inspect) -> None:
    tensors = {
        t.name: (t.dtype, t.shape, t.marker or b"\1") for t in describe("dit_pruned_nvfp4", "tiny").tensors
    }
    del tensors[f"{LAYER}.weight"]

    found = inspect(write_tensors(tensors))

    assert sum(row.num_parameters for row in found.formats) == found.num_parameters


@pytest.mark.parametrize("variant", ["vae_video_fp16", "vae_audio_fp32"])
def test_a_decoder_alone_loads_and_the_inspector_says_what_it_cannot_do(
    variant: str, tmp_path: Path, inspect: Inspect
) -> None:
    path = tmp_path / "a.safetensors"
    description = describe(variant, "tiny")
    values = Values(description)
    tensors = {spec.name: values.tensor(spec) for spec in description.tensors}
    encoder = ("encoder.", "quant_conv.", "pre_block.", "mean_proj.", "logs_proj.")
    save_file({name: tensor for name, tensor in tensors.items() if not name.startswith(encoder)}, path)

    found = inspect(path)

    assert (found.runtime.loads, found.missing.count, loads(found)) == (True, 0, True)
    assert "it holds the decoder alone: jobs with keyframes or references are refused" in found.notes
