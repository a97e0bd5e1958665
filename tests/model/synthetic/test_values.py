"""Values of written files: each quantised one holds the bf16 one within its format's error, and is sane."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from model.checkpoints.descriptions import VARIANTS, HeaderDescription, describe
from model.synthetic.faults import write_twin
from model.synthetic.twins import Twin
from model.synthetic.values import Values
from model.synthetic.writer import write_file

Decode = Callable[[Path, HeaderDescription], dict[str, Tensor]]
Measure = Callable[[Tensor, Tensor], float]

pytestmark = pytest.mark.usefixtures("one_thread")

WEIGHT_ERROR = {
    "nvfp4": (0.085, 0.105),
    "nvfp4_awq": (0.085, 0.105),
    "int8_rowwise": (0.005, 0.010),
    "int4_convrot": (0.10, 0.17),
    "fp8_scaled": (0.025, 0.029),
    "fp8_weight_only": (0.025, 0.029),
}
"""Relative L2 against bf16 weights, of normal numbers: 0.095, 0.009, 0.16, 0.027 at full size; a row of 256
numbers has a smaller largest one, hence finer integers. A value below the band is no quantised one."""
QUANTISED = [name for name in VARIANTS if any(item.marker for item in describe(name, "tiny").linears)]


def written(folder: Path, variant: str) -> Path:
    description = describe(variant, "tiny")
    write_file(folder / f"{variant}.safetensors", description, Values(description).bytes)
    return folder / f"{variant}.safetensors"


def base_of(variant: str) -> str:
    family = "te_qwen3vl" if variant.startswith("te_") else "_".join(variant.split("_")[:2])
    return f"{family}_bf16"


def norm_before(tensors: dict[str, Tensor], linear: str) -> Tensor | float:
    """The norm that carries a linear's smoothing in an AWQ file."""
    layer, _, own = linear.partition(".self_attn.")
    if own in ("q_proj", "k_proj", "v_proj"):
        return tensors[f"{layer}.input_layernorm.weight"].float()
    layer, _, own = linear.partition(".mlp.")
    return (
        tensors[f"{layer}.post_attention_layernorm.weight"].float()
        if own in ("gate_proj", "up_proj")
        else 1.0
    )


@pytest.mark.parametrize("variant", QUANTISED)
def test_every_quantised_weight_is_that_of_the_bf16_file_within_its_formats_error(
    variant: str, tmp_path: Path, decode: Decode, relative_l2: Measure
) -> None:
    description = describe(variant, "tiny")
    path = written(tmp_path, variant)
    plain, own = load_file(written(tmp_path, base_of(variant))), load_file(path)

    decoded = decode(path, description)

    for linear in description.linears:
        if linear.marker is None:
            continue
        low, high = WEIGHT_ERROR[linear.template]
        wanted, found = plain[f"{linear.name}.weight"].float(), decoded[linear.name]
        if variant.startswith("te_"):
            wanted, found = wanted * norm_before(plain, linear.name), found * norm_before(own, linear.name)
        assert low < relative_l2(found, wanted) < high, linear.name


@pytest.mark.parametrize("variant", QUANTISED)
def test_everything_else_of_a_quantised_file_is_that_of_the_bf16_file_bit_for_bit(
    variant: str, tmp_path: Path
) -> None:
    plain, own = load_file(written(tmp_path, base_of(variant))), load_file(written(tmp_path, variant))
    quantised = tuple(item.name for item in describe(variant, "tiny").linears if item.marker)

    islands = {name for name in own if not name.startswith(tuple(f"{item}." for item in quantised))}
    islands |= {f"{item}.bias" for item in quantised if f"{item}.bias" in own}
    if "awq" in variant:
        islands = {name for name in islands if not name.endswith("_layernorm.weight")}

    assert all(torch.equal(own[name], plain[name]) for name in islands)
    assert plain.keys() - islands - {f"{item}.weight" for item in quantised} == {
        name for name in plain if "awq" in variant and name.endswith("_layernorm.weight")
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_values_are_finite_norms_are_near_one_and_scales_are_sane(variant: str) -> None:
    description = describe(variant, "tiny")
    values = Values(description)

    for spec in description.tensors:
        tensor = values.tensor(spec)
        assert tensor.float().isfinite().all(), spec.name
        if spec.name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "_layernorm.weight")):
            assert 0.7 < float(tensor.float().median()) < 1.4, spec.name
        if spec.name.endswith("weight_scale") and spec.dtype == "F8_E4M3":
            assert int(tensor.view(torch.uint8).max()) < 0x7F  # no NaN, no sign
        if spec.name.endswith(("weight_scale", "weight_scale_2")) and spec.dtype == "F32":
            assert tensor.min() > 1e-6
            assert tensor.max() < 0.2


def test_a_lora_scales_its_product_as_the_published_one_and_keeps_q_k_and_v_apart() -> None:
    description = describe("lora_turbo_rank128", "tiny")
    values = Values(description)
    tensors = {spec.name: values.tensor(spec) for spec in description.tensors}
    prefix = "diffusion_model.blocks.0.attn.qkv_proj."

    rank = tensors[f"{prefix}lora_A.weight"].shape[0]
    blocks = tensors[f"{prefix}lora_B.weight"].float().unflatten(0, (3, -1)).unflatten(2, (3, -1))

    assert tensors[f"{prefix}alpha"].item() / rank == 8 / 128
    used = blocks.abs().amax((1, 3)) > 0
    assert torch.equal(used, torch.eye(3, dtype=torch.bool))


def test_large_matrices_repeat_their_first_rows_in_every_tensor_that_stores_them(
    tmp_path: Path, decode: Decode, relative_l2: Measure
) -> None:
    description = describe("dit_pruned_nvfp4", "tiny", dims={"H": 2048, "F": 4096 + 512, "L": 1, "R": 0})
    write_file(tmp_path / "a.safetensors", description, Values(description).bytes)

    fc1 = decode(tmp_path / "a.safetensors", description)["blocks.0.mlp.fc1"]

    period = 2**22 // 2048
    assert fc1.shape == (9216, 2048)
    assert torch.equal(fc1[:period], fc1[period : 2 * period])
    assert torch.equal(fc1[: 9216 % period], fc1[-(9216 % period) :])
    assert len(fc1[:period].unique(dim=0)) == period
    assert fc1.std().item() == pytest.approx(2048**-0.5, rel=0.01)


SPOILED_ERROR = {Twin.PLAIN_SCALES: (0.25, 0.60), Twin.SWAPPED_NIBBLES: (1.35, 1.48)}


@pytest.mark.parametrize(
    ("variant", "twin"),
    [
        ("dit_pruned_nvfp4", Twin.PLAIN_SCALES),
        ("dit_pruned_nvfp4", Twin.SWAPPED_NIBBLES),
        ("dit_pruned_int4_convrot", Twin.SWAPPED_NIBBLES),
        ("te_qwen3vl_nvfp4_awq", Twin.PLAIN_SCALES),
    ],
)
def test_values_tell_a_twin_that_no_header_tells(
    variant: str, twin: Twin, tmp_path: Path, decode: Decode, relative_l2: Measure
) -> None:
    description = describe(variant, "tiny")
    write_twin(tmp_path / "twin.safetensors", description, twin)
    good, bad = (
        decode(written(tmp_path, variant), description),
        decode(tmp_path / "twin.safetensors", description),
    )

    errors = [relative_l2(bad[name], good[name]) for name in good if name != "model.embed_tokens"]

    low, high = SPOILED_ERROR[twin]
    assert low < min(errors)
    assert max(errors) < high


@pytest.mark.parametrize("variant", ["dit_pruned_bf16", "dit_pruned_nvfp4", "dit_pruned_int8_convrot"])
def test_interleaved_qkv_has_the_same_rows_in_the_original_order(
    variant: str, tmp_path: Path, decode: Decode
) -> None:
    description = describe(variant, "tiny")
    write_twin(tmp_path / "twin.safetensors", description, Twin.INTERLEAVED_QKV)
    name = "blocks.1.attn.qkv_proj"

    def rows(path: Path) -> Tensor:
        is_plain = variant == "dit_pruned_bf16"
        return load_file(path)[f"{name}.weight"] if is_plain else decode(path, description)[name]

    good, bad = rows(written(tmp_path, variant)), rows(tmp_path / "twin.safetensors")
    per_head = bad.unflatten(0, (2, 3, 128))  # heads, then q, k, v
    assert torch.equal(per_head.transpose(0, 1).flatten(0, 2), good)
    assert not torch.equal(bad, good)
