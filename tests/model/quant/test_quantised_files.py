"""Quantised files, from markers to modules: what loads, and the one sentence for what does not."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.checkpoints.descriptions import describe
from model.checkpoints.header import read_header
from model.dit import H3Transformer
from model.errors import CheckpointFileError, CheckpointMismatchError
from model.loading.models import load_text_encoder, load_transformer, load_video_decoder
from model.quant.fp8 import FP8Linear
from model.quant.int4 import Int4Linear
from model.quant.int8 import Int8Embedding, Int8Linear
from model.quant.linear import QuantLinear
from model.quant.marker import METADATA_KEY
from model.quant.nvfp4 import NVFP4Linear
from model.synthetic.quantise import quantise
from model.synthetic.values import Values
from model.synthetic.writer import write_file
from model.text_encoder.presentation import Presentation

CPU = torch.device("cpu")
Tensors = dict[str, Tensor]
QKV = "blocks.0.attn.qkv_proj"
INT8_64 = '{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 64}'


@dataclass(frozen=True)
class Shelf:
    """Tiny files by variant, and edited copies of them."""

    folder: Path

    def path(self, variant: str) -> Path:
        path = self.folder / f"{variant}.safetensors"
        if not path.exists():
            description = describe(variant, "tiny")
            write_file(path, description, Values(description).bytes)
        return path

    def tensors(self, variant: str) -> Tensors:
        return load_file(self.path(variant))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("shelf"))


def load(path: Path, *, islands_as_comfyui: bool = False) -> H3Transformer:
    return load_transformer(
        read_header(path), device=CPU, compute_dtype=torch.float32, islands_as_comfyui=islands_as_comfyui
    )


def bytes_of(tensor: Tensor) -> bytes:
    return bytes(tensor.flatten().view(torch.uint8).tolist())


def quantised(model: nn.Module) -> dict[str, QuantLinear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantLinear)}


@pytest.mark.parametrize(
    ("variant", "kind", "per_block"),
    [
        ("dit_pruned_bf16", nn.Linear, 0),
        ("dit_pruned_nvfp4", NVFP4Linear, 4),
        ("dit_pruned_fp8_scaled", FP8Linear, 4),
        ("dit_pruned_int8_convrot", Int8Linear, 4),
        ("dit_pruned_int4_convrot", Int4Linear, 4),
        ("dit_full_int8_convrot", Int8Linear, 5),  # AdaLN too
    ],
)
def test_the_marked_linears_of_a_transformer_become_their_formats(
    shelf: Shelf, variant: str, kind: type, per_block: int
) -> None:
    model = load(shelf.path(variant))

    found = quantised(model)
    assert len(found) == per_block * model.config.num_layers
    assert all(type(linear) is kind for linear in found.values())
    stored = shelf.tensors(variant)
    packed = {f"{name}.{suffix}" for name in found for suffix in dict(found[name].named_buffers())}
    assert all(bytes_of(model.state_dict()[name]) == bytes_of(stored[name]) for name in packed)
    markers = {name for name in stored if name.endswith("comfy_quant")}
    assert stored.keys() == model.state_dict().keys() | markers


def test_the_group_of_the_rotation_is_the_markers(shelf: Shelf) -> None:
    found = quantised(load(shelf.path("dit_full_int8_convrot")))

    assert found[QKV].marker.group == 256
    assert found["blocks.0.adaln_proj.linear"].marker.group == 64


def test_one_file_may_mix_formats(shelf: Shelf, tmp_path: Path) -> None:
    tensors = shelf.tensors("dit_pruned_bf16")
    for name, marker in (
        (QKV, '{"format": "int8_tensorwise"}'),
        ("blocks.0.mlp.fc1", '{"format": "nvfp4"}'),
        ("blocks.1.mlp.fc2", '{"format": "convrot_w4a4", "convrot_groupsize": 64}'),
    ):
        stored = quantise(marker, tensors.pop(f"{name}.weight"))
        tensors |= {f"{name}.{suffix}": tensor for suffix, tensor in stored.items()}
    save_file(tensors, tmp_path / "mixed.safetensors")

    found = quantised(load(tmp_path / "mixed.safetensors"))

    assert [type(found[name]) for name in sorted(found)] == [Int8Linear, NVFP4Linear, Int4Linear]


def test_all_faults_are_listed_together_before_a_weight_is_read(shelf: Shelf, tmp_path: Path) -> None:
    tensors = shelf.tensors("dit_pruned_nvfp4")
    del tensors[f"{QKV}.weight_scale_2"]
    tensors["blocks.0.mlp.fc1.weight_scale"] = torch.zeros(4, 4, dtype=torch.uint8)
    tensors["blocks.0.mlp.fc2.weight"] = tensors["blocks.0.mlp.fc2.weight"].view(torch.int8)
    tensors["blocks.0.attn.out_proj.zero_point"] = torch.zeros(1)
    del tensors["blocks.1.mlp.fc1.comfy_quant"]
    tensors["blocks.0.norm1.comfy_quant"] = tensors[f"{QKV}.comfy_quant"].clone()
    tensors["blocks.7.mlp.fc1.comfy_quant"] = tensors[f"{QKV}.comfy_quant"].clone()
    tensors["blocks.0.attn.q_norm.weight"][:] = torch.nan  # a value: told only once everything fits
    save_file(tensors, tmp_path / "bad.safetensors")

    with pytest.raises(CheckpointMismatchError) as caught:
        load(tmp_path / "bad.safetensors")

    assert caught.value.missing == [f"{QKV}.weight_scale_2"]
    assert caught.value.unexpected == [
        "blocks.0.attn.out_proj.zero_point",
        "blocks.1.mlp.fc1.weight_scale",
        "blocks.1.mlp.fc1.weight_scale_2",
        "blocks.7.mlp.fc1.comfy_quant",
    ]
    assert caught.value.wrong == [
        "blocks.0.mlp.fc1.weight_scale: (4, 4) instead of (512, 16)",
        "blocks.0.mlp.fc2.weight: I8 instead of U8",
        "blocks.0.norm1.comfy_quant: stands beside no linear",
        "blocks.1.mlp.fc1.weight: (512, 128) instead of (512, 256)",
    ]


def test_a_packed_weight_without_marker_and_a_group_that_does_not_divide_are_told(
    shelf: Shelf, tmp_path: Path
) -> None:
    tensors = shelf.tensors("dit_pruned_int8_convrot")
    del tensors[f"{QKV}.comfy_quant"], tensors[f"{QKV}.weight_scale"]
    marker = b'{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 1024}'
    tensors["blocks.0.mlp.fc1.comfy_quant"] = torch.frombuffer(bytearray(marker), dtype=torch.uint8)
    save_file(tensors, tmp_path / "bad.safetensors")

    with pytest.raises(CheckpointMismatchError) as caught:
        load(tmp_path / "bad.safetensors")

    assert caught.value.wrong == [
        f"{QKV}.weight: I8 without a comfy_quant marker instead of BF16 or F16 or F32",
        "blocks.0.mlp.fc1.comfy_quant: its convrot_groupsize 1024 does not divide the weight's 256 columns",
    ]


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        (torch.zeros(0, dtype=torch.uint8), r"marker blocks.0.attn.qkv_proj.comfy_quant is empty"),
        (torch.zeros(19, dtype=torch.uint8), "is 19 bytes of zero, a hole"),
        (torch.zeros(5000, dtype=torch.uint8), "has 5,000 bytes"),
        (torch.zeros(4), r"is F32 \[4\], not text"),
        (torch.zeros(4, 4, dtype=torch.uint8), r"is U8 \[4, 4\], not text"),
    ],
)
def test_a_marker_that_is_no_text_is_refused(
    shelf: Shelf, tmp_path: Path, marker: Tensor, reason: str
) -> None:
    tensors = shelf.tensors("dit_pruned_nvfp4")
    tensors[f"{QKV}.comfy_quant"] = marker
    save_file(tensors, tmp_path / "bad.safetensors")

    with pytest.raises(CheckpointFileError, match=reason):
        load(tmp_path / "bad.safetensors")


@pytest.mark.parametrize(
    ("variant", "suffix", "value"),
    [
        ("dit_pruned_int8_convrot", "weight_scale", torch.nan),
        ("dit_pruned_nvfp4", "weight_scale_2", torch.inf),
        ("dit_pruned_nvfp4", "weight", 0),
        ("dit_pruned_fp8_scaled", "weight", torch.nan),
        ("dit_pruned_fp8_scaled", "weight", -0.0),
    ],
)
def test_scales_and_codes_that_nobody_trained_are_refused(
    shelf: Shelf, tmp_path: Path, variant: str, suffix: str, value: float
) -> None:
    tensors = shelf.tensors(variant)
    tensors[f"{QKV}.{suffix}"].fill_(value)
    save_file(tensors, tmp_path / "bad.safetensors")

    with pytest.raises(CheckpointFileError, match=rf"{QKV}.{suffix}' holds"):
        load(tmp_path / "bad.safetensors")


def moved_to_metadata(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    markers = {name for name in tensors if name.endswith(".comfy_quant")}
    layers = {name[: -len(".comfy_quant")]: json.loads(bytes(tensors[name].tolist())) for name in markers}
    kept = {name: tensor for name, tensor in tensors.items() if name not in markers}
    return kept, {METADATA_KEY: json.dumps({"format_version": "1.0", "layers": layers})}


def in_the_older_scheme(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    kept = {
        name.replace(".weight_scale", ".scale_weight").replace(".input_scale", ".scale_input"): tensor
        for name, tensor in tensors.items()
        if not name.endswith(".comfy_quant")
    }
    return {**kept, "scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}, {}


def with_bytes_for_scales(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    is_scale = {name: t.dtype is torch.float8_e4m3fn and t.dim() == 2 for name, t in tensors.items()}
    return {name: t.view(torch.uint8) if is_scale[name] else t for name, t in tensors.items()}, {}


def with_a_prefix(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    return {f"model.diffusion_model.{name}": tensor for name, tensor in tensors.items()}, {}


@pytest.mark.parametrize(
    ("variant", "rewrite"),
    [
        ("dit_pruned_int8_convrot", moved_to_metadata),
        ("dit_pruned_fp8_scaled", in_the_older_scheme),
        ("dit_pruned_nvfp4", with_bytes_for_scales),
        ("dit_pruned_nvfp4", with_a_prefix),
    ],
)
def test_other_carriers_of_the_same_facts_give_the_same_weights(
    shelf: Shelf,
    tmp_path: Path,
    variant: str,
    rewrite: Callable[[Tensors], tuple[Tensors, dict[str, str]]],
) -> None:
    tensors, metadata = rewrite(shelf.tensors(variant))
    save_file(tensors, tmp_path / "other.safetensors", metadata=metadata)

    found, wanted = (quantised(load(path)) for path in (tmp_path / "other.safetensors", shelf.path(variant)))

    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name].dequantise(), wanted[name].dequantise()) for name in wanted)


def test_metadata_that_contradicts_a_marker_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    layers = {QKV: {"format": "nvfp4", "full_precision_matrix_mult": True}}
    metadata = {METADATA_KEY: json.dumps({"format_version": "1.0", "layers": layers})}
    save_file(shelf.tensors("dit_pruned_nvfp4"), tmp_path / "bad.safetensors", metadata=metadata)

    with pytest.raises(CheckpointFileError, match=rf"{QKV}.comfy_quant and the header's metadata"):
        load(tmp_path / "bad.safetensors")


def test_islands_stay_float32_and_are_rounded_as_comfyui_does_on_demand(shelf: Shelf) -> None:
    exact = load(shelf.path("dit_pruned_nvfp4"))
    rounded = load(shelf.path("dit_pruned_nvfp4"), islands_as_comfyui=True)
    unquantised = load(shelf.path("dit_pruned_bf16"), islands_as_comfyui=True)

    for name in ("video_patch_proj", "final_layer.audio_out", "blocks.1.adaln_proj.linear"):
        own, other, plain = (model.get_submodule(name) for model in (exact, rounded, unquantised))
        assert torch.equal(own.weight, plain.weight)  # a file without markers is left alone
        assert not torch.equal(own.weight, other.weight)
        assert torch.equal(own.weight.to(torch.bfloat16).float(), other.weight)
        assert torch.equal(own.bias.to(torch.bfloat16).float(), other.bias)
    assert torch.equal(exact.adaln_t_table, rounded.adaln_t_table)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_awq_text_encoder_has_a_packed_embedding_and_answers_in_its_dtype(
    shelf: Shelf, dtype: torch.dtype
) -> None:
    path = shelf.path("te_qwen3vl_nvfp4_awq")
    encoder = load_text_encoder(read_header(path), device=CPU, dtype=dtype)

    features = encoder.encode(Presentation((1, 5, 2), (1, 1, 1)))

    assert (features.dtype, encoder.dtype, encoder.device) == (dtype, dtype, CPU)
    assert isinstance(encoder.model.language_model.embed_tokens, Int8Embedding)
    found = quantised(encoder.model)
    smoothed = {
        name.rpartition(".")[2]
        for name, linear in found.items()
        if "pre_quant_scale" in dict(linear.named_buffers())
    }
    assert smoothed == {"o_proj", "down_proj"}
    assert not any(name.startswith("visual.") for name in found)


def test_the_video_vaes_marked_linears_are_decoded_to_its_dtype(
    shelf: Shelf, tmp_path: Path, relative_l2: Callable[[Tensor, Tensor], float]
) -> None:
    tensors = shelf.tensors("vae_video_fp16")
    blocks = [
        name
        for name in tensors
        if name.startswith("decoder.transformer_blocks.") and tensors[name].dim() == 2
    ]
    for name in blocks:
        weight, module = tensors.pop(name), name.removesuffix(".weight")
        stored = quantise(INT8_64, weight)
        tensors |= {f"{module}.{suffix}": tensor for suffix, tensor in stored.items()}
    plain = {name: t.float() if name.endswith("bias") else t for name, t in tensors.items()}
    save_file(plain, tmp_path / "int8.safetensors")

    found = load_video_decoder(read_header(tmp_path / "int8.safetensors"), device=CPU, dtype=torch.float32)

    wanted = load_video_decoder(read_header(shelf.path("vae_video_fp16")), device=CPU, dtype=torch.float32)
    latents = torch.randn(1, 24, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    assert len(quantised(found)) == len(blocks)
    assert 0.001 < relative_l2(found(latents), wanted(latents)) < 0.03
    half = load_video_decoder(read_header(tmp_path / "int8.safetensors"), device=CPU, dtype=torch.float16)
    assert half(latents).dtype == torch.float16


def test_float16_is_refused_for_the_transformer_by_its_reason(shelf: Shelf) -> None:
    with pytest.raises(ValueError, match="residual stream overflows"):
        load_transformer(read_header(shelf.path("dit_pruned_nvfp4")), device=CPU, compute_dtype=torch.float16)
