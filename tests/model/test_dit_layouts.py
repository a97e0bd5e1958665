"""What the transformer's two layouts are made of, and how the pruned one follows from the full one."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.attention import resolve_attention
from model.config import RELEASED, RELEASED_PRUNED, TINY, TransformerConfig
from model.dit import H3Transformer, parameter_dtypes
from model.dit.block import DiTBlock
from model.dit.checkpoint import transformer_config_from_shapes
from model.dit.rope import inverse_frequencies
from model.packing import pack, row_timesteps
from queue_schemas.conventions import COMFYUI, DIFFUSERS
from queue_schemas.geometry import LatentShape, latent_shape

HEADERS = Path(__file__).parents[1] / "golden" / "headers"
IN_MEMORY = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float32}
"""File dtype to ours at bfloat16; only the pruned AdaLN is stored as F16, and it is computed in float32."""
RELEASES = [
    ("dit_full_bf16", RELEASED.transformer, 535, 33_122_992_896 + 16),
    ("dit_pruned_bf16", RELEASED_PRUNED.transformer, 532, 20_111_430_528 + 1025 * 8 + 16),
]


def tensors_of(header: dict[str, Any]) -> Iterator[tuple[str, str, list[int]]]:
    """Expand a header description into (name, dtype, shape)."""

    def size(expression: str | int) -> int:
        return int(eval(str(expression), {"__builtins__": {}}, header["dims"]))

    for group in header["groups"]:
        for i in range(size(group.get("repeat", {"i": 1})["i"])):
            for entry in group["entries"]:
                name = entry["name"] if "name" in entry else f"{entry['linear']}.weight"
                shape = entry["shape"] if "shape" in entry else [entry["O"], entry["I"]]
                yield group["prefix"].replace("{i}", str(i)) + name, entry["dtype"], [size(n) for n in shape]


@pytest.mark.parametrize(("name", "config", "count", "numbers"), RELEASES, ids=["full", "pruned"])
def test_names_shapes_and_dtypes_are_those_of_the_released_files(
    name: str, config: TransformerConfig, count: int, numbers: int
) -> None:
    header = json.loads((HEADERS / f"{name}.json").read_text())
    file = {tensor: (dtype, shape) for tensor, dtype, shape in tensors_of(header)}

    with torch.device("meta"):
        network = H3Transformer(config)

    ours = network.state_dict()
    assert len(ours) == len(file) == header["expect"]["tensor_count"] == count
    assert sum(tensor.numel() for tensor in ours.values()) == numbers
    assert {tensor: list(t.shape) for tensor, t in ours.items()} == {
        k: shape for k, (_, shape) in file.items()
    }
    assert {tensor: t.dtype for tensor, t in ours.items()} == {
        k: IN_MEMORY[dt] for k, (dt, _) in file.items()
    }
    assert parameter_dtypes(config, torch.bfloat16) == {tensor: t.dtype for tensor, t in ours.items()}
    shapes = {tensor: tuple(shape) for tensor, (_, shape) in file.items()}
    assert transformer_config_from_shapes(shapes, source=HEADERS) == config


@pytest.mark.parametrize(
    "config", [RELEASED.transformer, RELEASED_PRUNED.transformer], ids=["full", "pruned"]
)
def test_float32_compute_makes_every_tensor_float32(config: TransformerConfig) -> None:
    assert set(parameter_dtypes(config, torch.float32).values()) == {torch.float32}


def test_float16_compute_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bfloat16 or float32, not torch\.float16"):
        H3Transformer(RELEASED.transformer, compute_dtype=torch.float16)


def test_frequencies_are_bit_equal_to_the_stored_ones(golden: Callable[[str], dict[str, Tensor]]) -> None:
    stored = golden("transformer_full")["weights.rope.inv_freq"]

    assert torch.equal(inverse_frequencies(2, 10_000.0), stored)


@pytest.mark.parametrize(
    "config", [RELEASED.transformer, RELEASED_PRUNED.transformer], ids=["full", "pruned"]
)
def test_a_released_size_step_never_reads_a_device_value(config: TransformerConfig) -> None:
    """On the meta device nothing has a value, so any `.item()` or branch on a tensor would raise."""
    meta = torch.device("meta")
    with meta:
        network = H3Transformer(config)
        video_rows, audio_rows, text_embeds = (
            torch.zeros(18_870, 96),
            torch.zeros(414, 32),
            torch.zeros(256, 5120),
        )
    layout = pack(256, latent_shape(frames=124, width=960, height=544)).to(meta)
    _, attention = resolve_attention("sdpa", meta)
    timesteps, timestep_index = row_timesteps(layout, t_video=0.2, t_audio=0.5)

    video, audio = network(
        video_rows=video_rows,
        audio_rows=audio_rows,
        text=network.encode_text(text_embeds, attention=attention),
        timesteps=timesteps,
        timestep_index=timestep_index,
        layout=layout,
        rope=network.rope_table(layout),
        attention=attention,
        conventions=COMFYUI,
    )

    assert (video.shape, audio.shape) == ((18_870, 96), (414, 32))
    assert video.dtype == audio.dtype == torch.float32


def prune(full: H3Transformer, rows: int) -> H3Transformer:
    """Tabulate the SiLU-ed time embedding on a grid and factor it; exact there, as the rank is not cut."""
    config = full.config
    curve = F.silu(full.time_embed(torch.linspace(0, 1, rows), DIFFUSERS)).double()  # [G, E]
    u, s, basis = torch.linalg.svd(curve, full_matrices=False)
    weights = {name: t for name, t in full.state_dict().items() if not name.startswith("time_embedder.")}
    for name, tensor in weights.items():
        if name.endswith("adaln_proj.linear.weight"):
            weights[name] = (tensor.double() @ basis.T).float()
    weights["adaln_t_table"] = (u * s).float()
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    pruned = H3Transformer(
        TransformerConfig(**{**fields, "time_embed_dim": len(s), "time_table_rows": rows}),
        compute_dtype=torch.float32,
    )
    pruned.load_state_dict(weights)
    return pruned


# Off the grid straight lines cut the curve short (reached 1.9e-5); on it both compute the same (1.5e-7).
@pytest.mark.parametrize(
    ("t_video", "t_audio", "tolerance"),
    [(0.0, 0.0, 1e-5), (8 / 32, 19 / 32, 1e-5), (31 / 32, 1.0, 1e-5), (0.3, 0.61, 1e-4)],
    ids=["start", "middle", "end", "between"],
)
def test_the_pruned_layout_equals_the_full_one_where_its_table_has_a_row(
    make_twins: Callable[[TransformerConfig, int], Any],
    relative_l2: Callable[[Tensor, Tensor], float],
    t_video: float,
    t_audio: float,
    tolerance: float,
) -> None:
    config = TransformerConfig(
        hidden_size=32,
        num_heads=2,
        head_dim=32,
        num_layers=2,
        num_refiner_layers=1,
        ffn_dim=48,
        text_dim=16,
        time_freq_dim=16,
        time_hidden_dim=24,
        time_embed_dim=12,
        rope_freq_dim=4,
    )
    full = make_twins(config, 3).ours
    pruned = prune(full, 33)
    shape = LatentShape(frames=2, height=4, width=4, audio=8)
    layout = pack(5, shape)
    timesteps, timestep_index = row_timesteps(layout, t_video=t_video, t_audio=t_audio)
    draw = torch.Generator().manual_seed(9)
    video_rows = torch.randn(shape.video_tokens, 96, generator=draw)
    audio_rows = torch.randn(shape.audio_tokens, 32, generator=draw)
    text_embeds = torch.randn(5, 16, generator=draw)
    _, attention = resolve_attention("sdpa", torch.device("cpu"))

    found, wanted = (
        network(
            video_rows=video_rows,
            audio_rows=audio_rows,
            text=network.encode_text(text_embeds, attention=attention),
            timesteps=timesteps,
            timestep_index=timestep_index,
            layout=layout,
            rope=network.rope_table(layout),
            attention=attention,
            conventions=DIFFUSERS,
        )
        for network in (pruned, full)
    )

    assert relative_l2(found[0], wanted[0]) <= tolerance
    assert relative_l2(found[1], wanted[1]) <= tolerance


def test_a_timestep_outside_the_table_takes_its_nearest_end(
    golden: Callable[[str], dict[str, Tensor]],
) -> None:
    table = golden("transformer_pruned")["weights.adaln_t_table"]
    with torch.device("meta"):
        network = H3Transformer(TransformerConfig(num_layers=1, time_embed_dim=4, time_table_rows=33))
    network.adaln_t_table = table

    found = network.time_embed(torch.tensor([-0.5, 0.0, 5 / 32, 1.0, 1.5]), COMFYUI)

    torch.testing.assert_close(found, table[[0, 0, 5, 32, 32]], atol=0, rtol=0)


def test_blocks_that_share_meta_tensors_share_nothing_else() -> None:
    with torch.device("meta"):
        network = H3Transformer(TINY.transformer)
    first, second = network.blocks[0], network.blocks[1]
    second.attn.out_proj.register_forward_hook(lambda *_: None)
    second.attn.out_proj.weight = torch.nn.Parameter(torch.zeros(1))
    second.mlp.fc1 = torch.nn.Identity()

    assert first.attn.out_proj.weight.is_meta
    assert not first.attn.out_proj._forward_hooks
    assert isinstance(first.mlp.fc1, torch.nn.Linear)
    with torch.device("meta"):
        built_alone = DiTBlock(TINY.transformer, dtype=torch.bfloat16, adaln_dtype=torch.float32)
    assert first.state_dict().keys() == built_alone.state_dict().keys()
