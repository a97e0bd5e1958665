"""Descriptions of the published files: their figures, to the last byte where a hash was published."""

import hashlib
import json

import pytest

from model.checkpoints.descriptions import VARIANTS, describe
from model.checkpoints.expressions import evaluate
from model.checkpoints.identity import keyset_md5
from queue_schemas.published import PublishedFile, published_files

PUBLISHED_IDENTITY = {
    "dit_pruned_nvfp4": "b62e4dffa5e111a50c42132e0c200fdebbd499b33ab7f81670cde0b498524354",
    "dit_pruned_int8_convrot": "8232b3c428e54591c286b5eee3eaba840f03d2cd2cb359ec09dd2558974ddc74",
}
PUBLISHED_KEYSET = {
    "dit_full_bf16": "db0197b6919425a5c7102c54e73affc1",
    "dit_full_int8_convrot": "fb6c399412920c6b817d5c1f43ec62cd",
    "dit_pruned_bf16": "b4e0df87da0c079979ae857edbcef49f",
    "dit_pruned_fp8_scaled": "7e410be9acd325ef8db3b8bed3d814cd",
    "dit_pruned_int8_convrot": "ac9fdcd56900c9a1a5ef21eaacf6cb76",
    "te_qwen3vl_int8_convrot": "d6473c909b72b73afc4fa00c273d1da2",
}
NO_METADATA = [name for name in VARIANTS if not describe(name, "tiny").has_unknown_metadata]


@pytest.mark.parametrize("variant", PUBLISHED_IDENTITY)
def test_a_header_is_byte_for_byte_the_published_one(variant: str) -> None:
    header = describe(variant).header_bytes()

    assert hashlib.sha256(header).hexdigest() == PUBLISHED_IDENTITY[variant]
    assert (
        describe(variant).identity == PUBLISHED_IDENTITY[variant] == describe(variant).expect["header_sha256"]
    )


@pytest.mark.parametrize("variant", PUBLISHED_KEYSET)
def test_names_and_shapes_have_the_published_digest(variant: str) -> None:
    shapes = {tensor.name: tensor.shape for tensor in describe(variant).tensors}

    assert keyset_md5(shapes) == PUBLISHED_KEYSET[variant] == describe(variant).expect["diffsynth_md5"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_counts_and_bytes_are_those_of_the_published_file(variant: str) -> None:
    found = describe(variant)

    assert len(found.tensors) == found.expect["tensor_count"]
    assert found.payload_bytes == found.expect["payload_bytes"]
    assert 8 + found.expect["header_len"] + found.payload_bytes == found.expect["file_bytes"]


@pytest.mark.parametrize("variant", NO_METADATA)
def test_a_header_without_metadata_has_the_published_length(variant: str) -> None:
    found = describe(variant)

    assert len(found.header_bytes()) == 8 + found.expect["header_len"]


@pytest.mark.parametrize("size", ["full", "tiny"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_offsets_tile_the_payload_and_the_header_says_the_same(variant: str, size: str) -> None:
    found = describe(variant, size)  # type: ignore[arg-type] # the decorator's strings

    document = json.loads(found.header_bytes()[8:])
    ends = [0, *(tensor.end for tensor in found.tensors)]

    assert [tensor.begin for tensor in found.tensors] == ends[:-1]
    assert list(document) == [tensor.name for tensor in found.tensors]
    assert all(document[tensor.name]["shape"] == list(tensor.shape) for tensor in found.tensors)
    assert all(tensor.shape == (len(tensor.marker),) for tensor in found.tensors if tensor.marker is not None)


def test_a_quantised_linear_names_its_logical_size_and_its_marker() -> None:
    found = describe("te_qwen3vl_nvfp4_awq", dims={"L": 1})
    linear = next(item for item in found.linears if item.name == "model.layers.0.self_attn.o_proj")
    stored = {tensor.name.removeprefix(f"{linear.name}."): tensor for tensor in found.tensors}

    assert (linear.out_features, linear.in_features, linear.template) == (5120, 8192, "nvfp4_awq")
    assert stored["weight"].shape == (5120, 4096)
    assert stored["pre_quant_scale"].shape == (8192,)
    assert stored["comfy_quant"].marker == b'{"format": "nvfp4", "full_precision_matrix_mult": true}'


def test_odd_sizes_pad_the_storage_of_nvfp4_and_nothing_else() -> None:
    found = describe("dit_pruned_nvfp4", "tiny", dims={"H": 200})
    shapes = {tensor.name: tensor.shape for tensor in found.tensors}

    assert shapes["blocks.0.mlp.fc2.weight"] == (208, 128)
    assert shapes["blocks.0.mlp.fc2.weight_scale"] == (256, 16)
    assert shapes["blocks.0.mlp.fc1.weight"] == (512, 104)
    assert shapes["blocks.0.mlp.fc1.weight_scale"] == (512, 16)
    assert shapes["blocks.0.norm1.weight"] == (200,)


def test_metadata_comes_first_and_the_length_stays_a_multiple_of_eight() -> None:
    header = describe("vae_audio_fp32", "tiny").header_bytes({"weights": "random"})

    assert header[8:].startswith(b'{"__metadata__":{"weights":"random"},')
    assert len(header) % 8 == 0


def test_an_unknown_variant_is_named_with_those_that_exist() -> None:
    with pytest.raises(KeyError, match="dit_pruned_nvfp4"):
        describe("dit_pruned_nf4")


@pytest.mark.parametrize("expression", ["__import__('os')", "H - 1", "H.real", "1.5", "W"])
def test_a_size_is_arithmetic_and_nothing_else(expression: str) -> None:
    with pytest.raises(ValueError, match="no size expression"):
        evaluate(expression, {"H": 3})


@pytest.mark.parametrize("file", published_files().files, ids=lambda file: file.name)
def test_the_registry_agrees_with_the_descriptions(file: PublishedFile) -> None:
    assert file.variant is not None
    found = describe(file.variant)
    trailing = 65 if file.name == "MiniMax_H3_FL2VA_pruned_nvfp4.safetensors" else 0

    if "768p" not in file.name:  # its metadata is shorter
        sizes = [found.expect["file_bytes"], found.expect.get("file_bytes_ref2va")]
        assert file.size_bytes is not None
        assert file.size_bytes - trailing in sizes
        assert file.name in found.published_names
    if not found.has_unknown_metadata:
        assert file.header_sha256 == found.expect.get("header_sha256")


def test_every_described_file_is_in_the_registry() -> None:
    described = {name for variant in VARIANTS for name in describe(variant, "tiny").published_names}

    assert described <= {file.name for file in published_files().files}
