"""AdaLN deltas of the full layout beside a pruned transformer, given the full file's time embedder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from lora_numbers import FULL, LoraNumbers, draw_lora, make_transformer
from safetensors.torch import save_file
from torch import Tensor

from model.checkpoints.header import read_header
from model.dit import H3Transformer
from model.errors import CheckpointFileError, CheckpointMismatchError
from model.lora.adaln import project, read_time_embedder
from model.lora.cards import card_of
from model.lora.errors import AdalnProjectionError
from model.lora.files import LoraFile
from model.lora.plan import plan_lora, targets_of
from model.lora.resident import ResidentLoras
from queue_schemas.conventions import COMFYUI
from queue_schemas.loras import JobLora
from queue_schemas.published import published_files

GRID = 17
"""Rows of the table; the request's timesteps lie on it, where pruning loses nothing."""
Velocity = Callable[[H3Transformer], Tensor]


def prune(full: H3Transformer) -> H3Transformer:
    """As the published files: a basis of the curve about its mean, and the mean in the biases."""
    curve = F.silu(full.time_embed(torch.linspace(0, 1, GRID), COMFYUI)).double()
    mean = curve.mean(0)
    u, s, basis = torch.linalg.svd(curve - mean, full_matrices=False)
    rank = GRID - 1
    weights = {name: t for name, t in full.state_dict().items() if not name.startswith("time_embedder.")}
    for name in [name for name in weights if name.endswith("adaln_proj.linear.weight")]:
        weight, bias = weights[name].double(), name.replace("weight", "bias")
        weights[bias] = (weights[bias] + weight @ mean).float()
        weights[name] = (weight @ basis[:rank].T).float()
    weights["adaln_t_table"] = (u * s)[:, :rank].float()
    pruned = make_transformer(replace(FULL, time_embed_dim=rank, time_table_rows=GRID))
    pruned.load_state_dict(weights)
    return pruned


@pytest.fixture
def full_file(tmp_path: Path) -> Path:
    """What counts of a full transformer's file."""
    weights = make_transformer().state_dict()
    own = {f"diffusion_model.{name}": tensor for name, tensor in weights.items() if name.startswith("time_")}
    save_file(own, tmp_path / "full.safetensors")
    return tmp_path / "full.safetensors"


def load(transformer: H3Transformer, lora: LoraNumbers, *, full_file: Path) -> ResidentLoras:
    embedder = read_time_embedder(full_file)
    path = lora.write(full_file.with_name("x.safetensors"), "comfyui")
    file = LoraFile(name="x", header=read_header(path))
    width = embedder.proj_out.out_features
    plan = plan_lora(file.header, targets_of(transformer), adaln_width=width)
    loras = ResidentLoras(transformer, embedder)
    loras.load(plan, card_of(file, plan, published_files()))
    return loras


def test_the_projected_lora_does_to_the_pruned_transformer_what_it_does_to_the_full_one(
    full_file: Path, velocity: Velocity, relative_l2: Callable[[Tensor, Tensor], float]
) -> None:
    lora, full = draw_lora(FULL, seed=2, adaln=True), make_transformer()
    pruned = prune(full)
    assert relative_l2(velocity(pruned), velocity(full)) < 1e-6

    loras = load(pruned, lora, full_file=full_file)
    loras.use([JobLora(name="x", strength=0.7)])

    for module in lora.pairs:
        full.get_submodule(module).weight += 0.7 * lora.delta(module)
    assert relative_l2(velocity(pruned), velocity(full)) < 3e-6
    loras.use([])
    assert relative_l2(velocity(pruned), velocity(full)) > 0.1


def test_a_table_that_does_not_follow_the_embedder_is_refused(full_file: Path) -> None:
    table = torch.randn(GRID, 8, generator=torch.Generator().manual_seed(0))

    with pytest.raises(AdalnProjectionError, match="% of the time embedder's curve lie outside"):
        project(read_time_embedder(full_file), table)


def test_a_file_without_a_whole_time_embedder_is_refused(tmp_path: Path) -> None:
    weights = make_transformer().state_dict()
    save_file({"blocks.0.norm1.weight": weights["blocks.0.norm1.weight"]}, tmp_path / "none.safetensors")
    del weights["time_embedder.proj_in.bias"]
    some = {name: weights[name] for name in weights if name.startswith("time_")}
    save_file(some, tmp_path / "some.safetensors")

    with pytest.raises(CheckpointFileError, match="holds no time embedder"):
        read_time_embedder(tmp_path / "none.safetensors")
    with pytest.raises(CheckpointMismatchError, match=r"1 missing \(proj_in\.bias\)"):
        read_time_embedder(tmp_path / "some.safetensors")
