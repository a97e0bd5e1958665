"""The transformer's architecture, read from a file's tensor shapes; full and pruned layouts alike.

Reads shapes and names only. The two tasks (FL2VA, Ref2VA) have identical names and shapes, so no shape tells
them apart. Source: ComfyUI's model detection, which counts blocks and measures rows in the same way.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from model.config import TransformerConfig
from model.errors import CheckpointMismatchError
from model.shapes import count_consecutive

SIZING: Final = (
    "video_patch_proj.weight",
    "audio_patch_proj.weight",
    "condition_proj.weight",
    "rope.inv_freq",
    "blocks.0.attn.q_norm.weight",
    "blocks.0.attn.qkv_proj.weight",
    "blocks.0.mlp.fc1.weight",
    "blocks.0.adaln_proj.linear.weight",
)
"""Tensors whose shapes fix the architecture."""
TIME_EMBEDDER: Final = "time_embedder.proj_in.weight"
TIME_TABLE: Final = "adaln_t_table"


def transformer_config_from_shapes(
    shapes: Mapping[str, tuple[int, ...]], *, source: Path
) -> TransformerConfig:
    """Return the architecture that a file's shapes describe.

    Raises CheckpointMismatchError, naming `source`, when a tensor that fixes a size is missing.
    """
    time_source = TIME_TABLE if TIME_TABLE in shapes else TIME_EMBEDDER
    missing = sorted(name for name in (*SIZING, time_source) if name not in shapes)
    if missing:
        raise CheckpointMismatchError(source, missing=missing)
    base = TransformerConfig()
    hidden, video_row = shapes["video_patch_proj.weight"]
    head_dim = shapes["blocks.0.attn.q_norm.weight"][0]
    pruned = time_source == TIME_TABLE
    return TransformerConfig(
        hidden_size=hidden,
        num_heads=shapes["blocks.0.attn.qkv_proj.weight"][0] // (3 * head_dim),
        head_dim=head_dim,
        num_layers=count_consecutive(shapes, "blocks.{}.norm1.weight"),
        num_refiner_layers=count_consecutive(shapes, "token_refiner.blocks.{}.norm1.weight"),
        ffn_dim=shapes["blocks.0.mlp.fc1.weight"][0] // 2,
        latent_channels=video_row // base.patch**2,
        audio_channels=shapes["audio_patch_proj.weight"][1],
        text_dim=shapes["condition_proj.weight"][1],
        time_freq_dim=base.time_freq_dim if pruned else shapes[TIME_EMBEDDER][1],
        time_hidden_dim=base.time_hidden_dim if pruned else shapes[TIME_EMBEDDER][0],
        time_embed_dim=shapes["blocks.0.adaln_proj.linear.weight"][1],
        time_table_rows=shapes[TIME_TABLE][0] if pruned else None,
        rope_freq_dim=shapes["rope.inv_freq"][0],
    )
