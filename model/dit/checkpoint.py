"""The transformer's architecture, read from a file's tensor shapes; full and pruned layouts alike.

Reads shapes and names only. The two tasks (FL2VA, Ref2VA) have identical names and shapes, so no shape tells
them apart. What every H3 transformer shares (latent channels, rotary frequencies) is not read: a file that
has it otherwise does not match. Source: ComfyUI's model detection, which counts and measures in the same way.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from model.config import TransformerConfig
from model.shapes import Shape, check_rules, count_layers, sizing_shapes

SIZING: Final = {
    "video_patch_proj.weight": 2,
    "condition_proj.weight": 2,
    "blocks.0.attn.q_norm.weight": 1,
    "blocks.0.attn.qkv_proj.weight": 2,
    "blocks.0.mlp.fc1.weight": 2,
    "blocks.0.adaln_proj.linear.weight": 2,
}
"""Tensors whose shapes fix the architecture, and how many dimensions each has."""
TIME_EMBEDDER: Final = "time_embedder.proj_in.weight"
TIME_TABLE: Final = "adaln_t_table"
TIME_TABLE_ROWS: Final = range(17, 4097)
"""1,025 in the release; a coarser table than h3-tiny's would cut the curve short."""


def transformer_config_from_shapes(shapes: Mapping[str, Shape], *, source: Path) -> TransformerConfig:
    """Return the architecture that a file's shapes describe.

    Raises CheckpointMismatchError, naming `source`, when a tensor that fixes a size is missing or cannot be
    meant.
    """
    pruned = TIME_TABLE in shapes
    sizes = sizing_shapes(shapes, {**SIZING, (TIME_TABLE if pruned else TIME_EMBEDDER): 2}, source=source)
    base = TransformerConfig()
    time_hidden, time_freq = (base.time_hidden_dim, base.time_freq_dim) if pruned else sizes[TIME_EMBEDDER]
    table_rows = sizes[TIME_TABLE][0] if pruned else None
    (head_dim,) = sizes["blocks.0.attn.q_norm.weight"]
    rotated = 6 * base.rope_freq_dim
    check_rules(
        source,
        {
            f"blocks.0.attn.q_norm.weight: heads are {head_dim} channels wide, not even or below"
            f" {rotated}": head_dim % 2 == 0 and head_dim >= rotated,
            f"{TIME_EMBEDDER}: {time_freq} columns are not even": time_freq % 2 == 0,
            f"{TIME_TABLE}: {table_rows} rows instead of {TIME_TABLE_ROWS[0]} to"
            f" {TIME_TABLE_ROWS[-1]:,}": table_rows is None or table_rows in TIME_TABLE_ROWS,
        },
    )
    return TransformerConfig(
        hidden_size=sizes["video_patch_proj.weight"][0],
        num_heads=max(1, sizes["blocks.0.attn.qkv_proj.weight"][0] // (3 * head_dim)),
        head_dim=head_dim,
        num_layers=count_layers(shapes, "blocks.{}.norm1.weight", source=source),
        num_refiner_layers=count_layers(shapes, "token_refiner.blocks.{}.norm1.weight", source=source),
        ffn_dim=max(1, sizes["blocks.0.mlp.fc1.weight"][0] // 2),
        text_dim=sizes["condition_proj.weight"][1],
        time_freq_dim=time_freq,
        time_hidden_dim=time_hidden,
        time_embed_dim=sizes["blocks.0.adaln_proj.linear.weight"][1],
        time_table_rows=table_rows,
    )
