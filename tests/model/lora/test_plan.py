"""What of a file fits: every tensor is matched, or dropped with its reason; malformed files are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lora_numbers import ALPHA, FULL, RANK, comfyui, draw_lora, load, make_transformer, peft
from safetensors.torch import save_file
from torch import Tensor

from model.checkpoints.descriptions import describe
from model.checkpoints.header import read_header
from model.checkpoints.lora_deltas import RANK_MAX
from model.config import RELEASED, RELEASED_PRUNED, TransformerConfig
from model.dit import H3Transformer
from model.lora.branch import Branch
from model.lora.errors import LoraFileError, LoraNotLoadedError, LoraPartialError
from model.lora.plan import plan_lora, targets_of
from model.synthetic.writer import write_sparse
from queue_schemas.loras import JobLora

PRUNED = replace(FULL, time_embed_dim=8, time_table_rows=17)
OUT = "diffusion_model.blocks.0.attn.out_proj"
Tensors = dict[str, Tensor]
Change = Callable[[Tensors], object]


def write(path: Path, tensors: Tensors, **metadata: str) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)
    return path


@pytest.fixture
def tensors() -> Tensors:
    return comfyui(draw_lora(FULL, seed=2))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"diffusion_model.blocks.2.attn.out_proj.lora_A.weight": (4, 256),
          "diffusion_model.blocks.2.attn.out_proj.lora_B.weight": (64, 4)}, "name no linear"),
        ({"lora_te_text_model.lora_down.weight": (4, 8)}, "name no linear"),
        ({"diffusion_model.final_layer.norm.diff": (64,)}, "name no linear"),
        ({"diffusion_model.final_layer.video_out.set_weight": (32 * 96, 64),
          "diffusion_model.final_layer.video_out.set_bias": (32 * 96,)}, "replace a weight"),
        ({"diffusion_model.final_layer.video_out.lora_A.weight": (4, 32),
          "diffusion_model.final_layer.video_out.lora_B.weight": (96, 4)}, "96 x 32 where this .* 96 x 64"),
        ({"diffusion_model.final_layer.video_out.diff_b": (97,)}, "biases of 97"),
    ],
)  # fmt: skip
def test_what_has_no_place_is_dropped_and_told_and_only_by_leave(
    more: dict[str, tuple[int, ...]], reason: str, tensors: Tensors, tmp_path: Path
) -> None:
    tensors |= {name: torch.ones(size) for name, size in more.items()}
    header = read_header(write(tmp_path / "x.safetensors", tensors))
    targets, total = targets_of(make_transformer()), len(tensors)

    with pytest.raises(
        LoraPartialError, match=rf"36 of {total} tensors.*{reason}.*--allow-partial"
    ) as caught:
        plan_lora(header, targets)

    assert sorted(name for names in caught.value.dropped.values() for name in names) == sorted(more)
    plan = plan_lora(header, targets, allow_partial=True)
    assert (plan.matched, plan.total, len(plan.deltas)) == (36, total, 12)


def test_adaln_pairs_of_the_full_layout_have_no_place_in_a_pruned_transformer(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", comfyui(draw_lora(FULL, seed=2, adaln=True)))
    header, targets = read_header(path), targets_of(make_transformer(PRUNED))

    with pytest.raises(LoraPartialError, match=r"6 change AdaLN weights 20 columns wide.* has 8; --lora"):
        plan_lora(header, targets)

    assert len(plan_lora(header, targets, allow_partial=True).deltas) == 12


def test_adaln_pairs_that_were_trained_on_a_pruned_transformer_fit_it(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", comfyui(draw_lora(PRUNED, seed=2, adaln=True)))

    plan = plan_lora(read_header(path), targets_of(make_transformer(PRUNED)))

    assert "blocks.1.adaln_proj.linear" in plan.deltas


def cut(name: str, to: tuple[int, ...]) -> Change:
    return lambda tensors: tensors.update({name: torch.zeros(to)})


def rank(r: int) -> Change:
    factors = {f"{OUT}.lora_A.weight": torch.zeros(r, 256), f"{OUT}.lora_B.weight": torch.zeros(64, r)}
    return lambda tensors: tensors.update(factors)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop(f"{OUT}.lora_A.weight"), r"out_proj lacks its down factor"),
        (lambda t: t.pop(f"{OUT}.lora_B.weight"), r"out_proj lacks its up factor"),
        (lambda t: [t.pop(f"{OUT}.lora_{f}.weight") for f in "AB"], "alpha without factors"),
        (cut(f"{OUT}.lora_A.weight", (3, 256)), r"factors of \[3, 256\] and \[64, 4\]"),
        (cut(f"{OUT}.lora_A.weight", (4, 256, 1, 1)), r"are no \[r, I\] and \[O, r\]"),
        (rank(RANK_MAX + 1), r"rank 4,097; 1 to 4,096"),
        (rank(0), "rank 0"),
        (cut(f"{OUT}.alpha", (64,)), r"alpha of \[64\]"),
        (lambda t: t.update({f"{OUT}.lora_A.weight": torch.ones(4, 256).to(torch.int8)}), "is I8; factors"),
        (lambda t: t.update({f"{OUT}.dora_scale": torch.ones(64, 1)}), "is a DoRA"),
        (lambda t: t.update({"lora_unet_blocks_0_mlp_fc1.hada_w1_a": torch.ones(2, 2)}), "is a LoHa"),
        (lambda t: t.update({f"{OUT}.lora_down.weight": torch.ones(4, 256)}), "say the same"),
        (lambda t: t.update({f"{OUT}.diff": torch.ones(64, 256)}), "factors and a whole difference"),
        (lambda t: t.update({f"{OUT[16:]}.lora_A.default.weight": t.pop(f"{OUT}.lora_A.weight")}),
         "spelled as comfyui and diffsynth"),
        (lambda t: t.update(peft(draw_lora(FULL, seed=2))), "spelled as comfyui and diffusers|say the same"),
        (lambda t: [t.clear(), t.update({"blocks.0.mlp.fc1.weight": torch.ones(192, 64)})], "fits: 1 name"),
    ],
)  # fmt: skip
def test_a_malformed_file_is_refused_in_a_sentence_whatever_is_allowed(
    change: Change, says: str, tensors: Tensors, tmp_path: Path
) -> None:
    change(tensors)
    header = read_header(write(tmp_path / "x.safetensors", tensors))

    with pytest.raises(LoraFileError, match=says):
        plan_lora(header, targets_of(make_transformer()), allow_partial=True)


def test_a_lora_for_another_size_of_model_is_refused(tmp_path: Path) -> None:
    other = replace(FULL, hidden_size=32)
    header = read_header(write(tmp_path / "x.safetensors", comfyui(draw_lora(other, seed=2))))

    with pytest.raises(LoraFileError, match=r"nothing in it fits: .*9 change weights of 768 x 32 where"):
        plan_lora(header, targets_of(make_transformer()), allow_partial=True)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (f"{OUT}.lora_B.weight", float("nan"), r"out_proj\.lora_B\.weight holds values that are not finite"),
        (f"{OUT}.lora_A.weight", float("inf"), r"out_proj\.lora_A\.weight holds values that are not finite"),
        (f"{OUT}.lora_B.weight", 3.4e38, r"out_proj becomes infinite in bfloat16"),
        (f"{OUT}.alpha", 0.0, r"alpha is 0\.0, no positive number"),
        (f"{OUT}.alpha", 3e38, r"out_proj has a factor alpha / rank of 7\.5e\+37, which float32 cannot hold"),
        (f"{OUT}.alpha", 1e-39, r"out_proj has a factor alpha / rank of 2\.5e-40, which float32 cannot hold"),
    ],
)
def test_values_that_nobody_trained_are_refused(
    name: str, value: float, says: str, tensors: Tensors, tmp_path: Path
) -> None:
    tensors[name].view(-1)[-1] = value
    path = write(tmp_path / "x.safetensors", tensors)

    with pytest.raises(LoraFileError, match=says):
        load(make_transformer().bfloat16(), path)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"alpha": "big"}, "metadata alpha is 'big', no positive number"),
        ({"alpha": "3e38"}, "a factor alpha / rank of 7.5e"),
        ({"alpha": "5e-324"}, "a factor alpha / rank of 0, which float32"),
        ({"lora_adapter_metadata": "["}, "no JSON object"),
        ({"lora_adapter_metadata": '{"transformer.use_rslora": true}'}, "asks for use_rslora"),
    ],
)
def test_metadata_that_would_scale_otherwise_is_refused(
    metadata: dict[str, str], says: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "x.safetensors", peft(draw_lora(FULL, seed=2)), **metadata)

    with pytest.raises(LoraFileError, match=says):
        load(make_transformer(), path)


def test_a_file_that_was_never_written_is_refused(tmp_path: Path) -> None:
    write_sparse(tmp_path / "turbo.safetensors", describe("lora_turbo_rank128"))
    with torch.device("meta"):
        transformer = H3Transformer(RELEASED.transformer)

    with pytest.raises(LoraFileError, match="tensors were never written, such as"):
        load(transformer, tmp_path / "turbo.safetensors")


def test_metadata_is_not_asked_where_every_pair_has_its_alpha(tensors: Tensors, tmp_path: Path) -> None:
    transformer = make_transformer()

    load(transformer, write(tmp_path / "x.safetensors", tensors, alpha="whatever"))

    branch = transformer.get_submodule("blocks.0.attn.out_proj.branches.0")
    assert isinstance(branch, Branch)
    assert branch.scale == ALPHA / RANK


def test_a_lora_that_is_not_loaded_is_told_with_those_that_are(tensors: Tensors, tmp_path: Path) -> None:
    loras = load(make_transformer(), write(tmp_path / "x.safetensors", tensors))

    with pytest.raises(LoraNotLoadedError, match=r"no LoRA 'y'; loaded are x"):
        loras.use([JobLora(name="y")])


@pytest.mark.parametrize(
    "config", [RELEASED.transformer, RELEASED_PRUNED.transformer], ids=["full", "pruned"]
)
def test_the_published_turbo_header_fits_both_released_layouts_whole(
    config: TransformerConfig, tmp_path: Path
) -> None:
    write_sparse(tmp_path / "turbo.safetensors", describe("lora_turbo_rank128"))
    with torch.device("meta"):
        targets = targets_of(H3Transformer(config))

    plan = plan_lora(read_header(tmp_path / "turbo.safetensors"), targets)

    assert (len(plan.deltas), plan.matched, plan.total) == (208, 624, 624)
    assert plan.deltas["blocks.49.attn.qkv_proj"].pairs[""].rank == 384
