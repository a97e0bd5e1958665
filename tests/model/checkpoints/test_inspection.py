"""What the inspector says of a model's file, told by its tensors and markers, never by its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model.checkpoints.descriptions import VARIANTS, HeaderDescription, describe
from queue_schemas.inspections import Inspection

Sparse = Callable[[HeaderDescription], Path]
Write = Callable[..., Path]
Inspect = Callable[[Path], Inspection]
MODELS = [variant for variant in VARIANTS if not variant.startswith("lora")]
QUANTISED = {
    "dit_full_int8_convrot": {"int8_tensorwise convrot 256": 200, "int8_tensorwise convrot 64": 50},
    "dit_pruned_fp8_scaled": {"float8_e4m3fn": 200},
    "dit_pruned_int8_convrot": {"int8_tensorwise convrot 256": 200},
    "dit_pruned_nvfp4": {"nvfp4": 200},
    "dit_pruned_int4_convrot": {"convrot_w4a4 convrot 256": 200},
    "te_qwen3vl_int8_convrot": {"int8_tensorwise convrot 256": 350},
    "te_qwen3vl_nvfp4_awq": {"nvfp4": 350, "int8_tensorwise": 1},
    "te_qwen3vl_int4_convrot": {"convrot_w4a4 convrot 256": 350},
}
FAMILIES = {"dit": "transformer", "te": "text_encoder", "vae_video": "video_vae", "vae_audio": "audio_vae"}
PARAMETERS = {"dit_full": 33_122_992_912, "dit_pruned": 20_111_438_744, "te_qwen3vl": 25_753_095_920}


def tensors_of(description: HeaderDescription) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """The tensors of a description with ones for content."""
    return {t.name: (t.dtype, t.shape, t.marker or b"\1") for t in description.tensors}


def packed(found: Inspection) -> dict[str, int]:
    return {
        f.format: f.num_linears + f.num_embeddings
        for f in found.formats
        if not f.format.isupper() and f.format.islower()
    }


@pytest.mark.parametrize("size", ["full", "tiny"])
@pytest.mark.parametrize("variant", MODELS)
def test_every_variant_is_recognised_whole(variant: str, size: Any, sparse: Sparse, inspect: Inspect) -> None:
    description = describe(variant, size)

    found = inspect(sparse(description))

    assert found.variant == variant
    assert found.family == next(family for start, family in FAMILIES.items() if variant.startswith(start))
    assert found.released_size == (size == "full")
    assert found.dims == dict(description.dims)
    assert found.depth == ("full" if "full" in variant else "pruned" if "pruned" in variant else None)
    assert (found.missing.count, found.unmatched.count, found.misshapen.count, found.problems) == (
        0,
        0,
        0,
        (),
    )
    assert found.container.header_sha256 == description.identity
    assert sum(part.size_bytes for part in found.parts) == description.payload_bytes
    assert sum(part.num_parameters for part in found.parts) == found.num_parameters
    assert {part.name for part in found.parts} & {"other"} == set()


@pytest.mark.parametrize("variant", QUANTISED)
def test_packed_weights_are_counted_per_format_and_the_rest_are_islands(
    variant: str, sparse: Sparse, inspect: Inspect
) -> None:
    found = inspect(sparse(describe(variant)))

    assert packed(found) == QUANTISED[variant]
    assert sum(group.count for group in found.weights) == sum(QUANTISED[variant].values())
    assert not any(island.tensors.endswith(("weight_scale", "comfy_quant")) for island in found.islands)
    assert sum(i.count for i in found.islands) + sum(
        group.count * len(group.tensors) for group in found.weights
    ) == len(describe(variant).tensors)


@pytest.mark.parametrize(
    "variant", ["dit_full_bf16", "dit_full_int8_convrot", "dit_pruned_nvfp4", "te_qwen3vl_nvfp4_awq"]
)
def test_parameters_are_those_of_the_model_however_they_are_packed(
    variant: str, sparse: Sparse, inspect: Inspect
) -> None:
    wanted = next(count for start, count in PARAMETERS.items() if variant.startswith(start))

    assert inspect(sparse(describe(variant))).num_parameters == wanted


def test_a_published_header_is_named_and_leaves_the_task_open(sparse: Sparse, inspect: Inspect) -> None:
    found = inspect(sparse(describe("dit_pruned_nvfp4")))

    assert found.published.by_header == (
        "MiniMax_H3_FL2VA_pruned_nvfp4.safetensors",
        "MiniMax_H3_Ref2VA_pruned_nvfp4.safetensors",
    )
    assert found.tasks == ("fl2va", "ref2va")
    assert found.published.by_name is None


def test_a_published_name_over_another_content_is_told(sparse: Sparse, inspect: Inspect) -> None:
    path = sparse(describe("dit_pruned_int8_convrot"))
    liar = path.rename(path.with_name("MiniMax_H3_FL2VA_pruned_nvfp4.safetensors"))

    found = inspect(liar)

    assert found.variant == "dit_pruned_int8_convrot"
    assert found.published.by_name == liar.name
    assert found.published.name_fits is False


def test_the_scales_of_nvfp4_awq_are_told_by_kind_and_layout(sparse: Sparse, inspect: Inspect) -> None:
    found = inspect(sparse(describe("te_qwen3vl_nvfp4_awq")))
    down = next(group for group in found.weights if group.modules == "model.layers.*.mlp.down_proj")
    roles = {stored.suffix: stored.role for stored in down.tensors}

    assert (down.count, down.shape) == (50, (5120, 25600))
    assert down.marker == {"format": "nvfp4", "full_precision_matrix_mult": True}
    assert roles["weight"].startswith("packed: two E2M1 a byte, the even column in the high nibble")
    assert "swizzled in tiles of 128 x 4" in roles["weight_scale"]
    assert "one for the tensor" in roles["weight_scale_2"]
    assert "per column" in roles["pre_quant_scale"]


def test_storage_padding_of_odd_sizes_is_no_fault(write_tensors: Write, inspect: Inspect) -> None:
    description = describe("dit_pruned_nvfp4", "tiny", dims={"H": 200})

    found = inspect(write_tensors(tensors_of(description)))

    assert (found.variant, found.dims["H"], found.problems) == ("dit_pruned_nvfp4", 200, ())
    assert found.weights[0].shape == (200, 256)


def test_a_mix_of_formats_is_told_layer_by_layer(write_tensors: Write, inspect: Inspect) -> None:
    tensors = tensors_of(describe("dit_pruned_nvfp4", "tiny"))
    eights = tensors_of(describe("dit_pruned_int8_convrot", "tiny"))
    mixed = {n: t for n, t in tensors.items() if ".attn." not in n} | {
        n: t for n, t in eights.items() if ".attn." in n
    }

    found = inspect(write_tensors(mixed))

    assert packed(found) == {"nvfp4": 4, "int8_tensorwise convrot 256": 4}
    assert (found.variant, found.problems, found.missing.count) == (None, (), 0)


@pytest.mark.parametrize("prefix", ["diffusion_model.", "model.diffusion_model."])
def test_a_wrapper_is_taken_off(write_tensors: Write, inspect: Inspect, prefix: str) -> None:
    tensors = tensors_of(describe("dit_pruned_int4_convrot", "tiny"))

    found = inspect(write_tensors({prefix + name: tensor for name, tensor in tensors.items()}))

    assert (found.variant, found.layout) == ("dit_pruned_int4_convrot", "comfyui")


def test_a_block_that_is_missing_in_the_middle_is_missed(write_tensors: Write, inspect: Inspect) -> None:
    tensors = tensors_of(describe("dit_pruned_bf16", "tiny", dims={"L": 9}))

    found = inspect(write_tensors({n: t for n, t in tensors.items() if not n.startswith("blocks.7.")}))

    assert found.dims["L"] == 9
    assert found.missing.count == 10
    assert all(name.startswith("blocks.7.") for name in found.missing.names)
    assert found.runtime.why == "its tensors are not exactly those of the architecture"


def test_a_file_of_ten_thousand_blocks_is_no_deeper_than_any_stack(
    write_tensors: Write, inspect: Inspect
) -> None:
    found = inspect(write_tensors({f"blocks.{i}.mlp.fc1.weight": ("BF16", (0,), b"") for i in range(10_000)}))

    assert found.dims["L"] == 256
    assert found.unmatched.count == 10_000 - 256


def test_a_tensor_too_many_and_one_of_another_shape_are_named(write_tensors: Write, inspect: Inspect) -> None:
    tensors = tensors_of(describe("dit_pruned_bf16", "tiny"))
    tensors["blocks.1.norm1.weight"] = ("BF16", (255,), b"\1")
    tensors["blocks.1.extra.weight"] = ("BF16", (3,), b"\1")

    found = inspect(write_tensors(tensors))

    assert found.unmatched.names == ("blocks.1.extra.weight",)
    assert found.misshapen.names == ("blocks.1.norm1.weight: [255] instead of [256]",)


QKV = "blocks.0.attn.qkv_proj"
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown format": ({f"{QKV}.comfy_quant": b'{"format": "fp3"}'}, "unknown format 'fp3'"),
    "format of others": ({f"{QKV}.comfy_quant": b'{"format": "mxfp8"}'}, "mxfp8, which is not decoded"),
    "half a marker": ({f"{QKV}.comfy_quant": b'{"format": "nv'}, "no JSON text"),
    "zeros": ({f"{QKV}.comfy_quant": b"\0" * 19}, "19 bytes of zero, a hole"),
    "long marker": ({f"{QKV}.comfy_quant": b" " * 5000}, "5,000 bytes; real ones have under 100"),
    "no marker": ({f"{QKV}.comfy_quant": None}, "nothing says how"),
    "no global scale": ({f"{QKV}.weight_scale_2": None}, "weight_scale_2 is missing"),
    "no weight": ({f"{QKV}.weight": None}, "no weight"),
    "strange scale": ({f"{QKV}.weight_s_rel": ("F32", (3,), b"\1")}, "does not belong to nvfp4"),
    "scale of rows": ({f"{QKV}.weight_scale": ("F32", (768, 1), b"\1")}, "instead of F8_E4M3"),
    "rotation that does not divide": (
        {f"{QKV}.comfy_quant": b'{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 1024}'},
        "does not divide",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_packed_weight_that_its_format_does_not_have_is_a_problem_and_no_crash(
    write_tensors: Write, inspect: Inspect, name: str
) -> None:
    changes, reason = FAULTS[name]
    tensors = tensors_of(describe("dit_pruned_nvfp4", "tiny"))
    for key, change in changes.items():
        if change is None:
            del tensors[key]
        else:
            tensors[key] = ("U8", (len(change),), change) if isinstance(change, bytes) else change

    found = inspect(write_tensors(tensors))

    assert any(reason in problem for problem in found.problems), found.problems
    assert found.family == "transformer"
    assert not found.runtime.loads


def test_markers_in_the_metadata_stand_for_tensors(write_tensors: Write, inspect: Inspect) -> None:
    tensors = tensors_of(describe("dit_pruned_nvfp4", "tiny"))
    layers = {
        n.removesuffix(".comfy_quant"): {"format": "nvfp4"} for n in tensors if n.endswith("comfy_quant")
    }
    metadata = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}

    found = inspect(
        write_tensors({n: t for n, t in tensors.items() if "comfy_quant" not in n}, metadata=metadata)
    )

    assert packed(found) == {"nvfp4": 8}
    assert found.problems == ()


def test_the_older_scheme_of_fp8_is_known(write_tensors: Write, inspect: Inspect) -> None:
    renamed = {}
    for name, tensor in tensors_of(describe("dit_pruned_fp8_scaled", "tiny")).items():
        if not name.endswith("comfy_quant"):
            name = name.replace("weight_scale", "scale_weight").replace("input_scale", "scale_input")  # noqa: PLW2901
            renamed[name] = tensor

    found = inspect(write_tensors({**renamed, "scaled_fp8": ("F8_E4M3", (0,), b"")}))

    assert packed(found) == {"float8_e4m3fn": 8}
    assert (found.problems, found.unmatched.count) == ((), 0)


def test_a_file_of_another_model_is_none_of_h3(write_tensors: Write, inspect: Inspect) -> None:
    found = inspect(write_tensors({"double_blocks.0.img_attn.qkv.weight": ("BF16", (12, 4), b"\1")}))

    assert (found.family, found.variant, found.layout) == (None, None, None)
    assert found.unmatched.names == ("double_blocks.0.img_attn.qkv.weight",)
    assert found.runtime.why == "it holds no model of H3"


def test_an_empty_header_and_nf4_are_told(write_tensors: Write, inspect: Inspect) -> None:
    nf4 = {
        "blocks.0.mlp.fc1.weight": ("U8", (64, 1), b"\1"),
        "blocks.0.mlp.fc1.weight.absmax": ("U8", (2,), b"\1"),
        "blocks.0.mlp.fc1.weight.quant_map": ("F32", (16,), b"\1"),
    }

    assert inspect(write_tensors({})).container.num_tensors == 0
    [group] = inspect(write_tensors(nf4)).weights
    assert group.format == "nf4 (bitsandbytes)"


@pytest.mark.parametrize("variant", ["dit_pruned_bf16", "dit_pruned_nvfp4", "vae_video_fp16"])
def test_holes_are_told_and_written_zeros_too(variant: str, sparse: Sparse, inspect: Inspect) -> None:
    description = describe(variant, "tiny")
    path = sparse(description)
    hollow = inspect(path).holes
    assert hollow is not None

    path.write_bytes(path.read_bytes())  # the same bytes, and no hole any more
    zeros = inspect(path)

    assert hollow.tensors.count > 0
    assert hollow.size_bytes > description.payload_bytes / 2
    assert zeros.holes is not None
    assert zeros.holes.num_zero_samples > 8
    assert zeros.runtime.why == "parts of it were never written"


def test_trailing_bytes_are_told_and_nothing_else_changes(write_tensors: Write, inspect: Inspect) -> None:
    path = write_tensors(tensors_of(describe("dit_pruned_nvfp4", "tiny")))
    path.write_bytes(path.read_bytes() + b"\nL2P" + b"x" * 61)

    found = inspect(path)

    assert found.container.trailing_bytes == 65
    assert found.variant == "dit_pruned_nvfp4"
    assert any("65 bytes behind the last tensor" in note for note in found.notes)
