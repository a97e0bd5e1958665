"""Names and shapes of a text encoder file: ComfyUI's names, the official ones, the config that shapes imply.

A module is named as in transformers' bare `Qwen3VLModel` (`language_model.*`, `visual.*`). Imports no torch.
Sources: Qwen3-VL-32B `config.json`; ComfyUI's qwen3vl_32b_minimax_h3 files.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from model.config import RELEASED, TextEncoderConfig
from model.shapes import Shape, check_rules, count_layers, sizing_shapes

_PREFIXES: Final = (
    ("model.language_model.", "language_model."),  # Qwen3VLForConditionalGeneration
    ("model.visual.", "visual."),
    ("model.", "language_model."),  # ComfyUI; its `visual.` is already the module's
)
SIZING: Final = {
    "model.embed_tokens.weight": 2,
    "model.layers.0.self_attn.q_norm.weight": 1,
    "model.layers.0.self_attn.q_proj.weight": 2,
    "model.layers.0.self_attn.k_proj.weight": 2,
    "model.layers.0.mlp.gate_proj.weight": 2,
    "visual.patch_embed.proj.weight": 5,
    "visual.pos_embed.weight": 2,
    "visual.blocks.0.mlp.linear_fc1.weight": 2,
}
"""Tensors whose shapes fix the architecture, and how many dimensions each has."""


def module_name(stored: str) -> str:
    """Return the module's name of a tensor stored under ComfyUI's or an official name."""
    for prefix, own in _PREFIXES:
        if stored.startswith(prefix):
            return own + stored.removeprefix(prefix)
    return stored


def comfyui_name(name: str) -> str:
    """Return ComfyUI's name of a module's tensor."""
    return "model." + name.removeprefix("language_model.") if name.startswith("language_model.") else name


def config_from_shapes(
    shapes: Mapping[str, Sequence[int]], *, source: Path = Path("text encoder")
) -> TextEncoderConfig:
    """Read the architecture from a file's tensor names and shapes.

    What no shape can tell follows these rules, which the released file and every tiny one obey:

    - the language depth is 50 at the released width, so that a stack cut elsewhere fails by name;
    - M-RoPE gives height and width 20/64 of the half head each, rounded down, and time the rest: 24, 20, 20;
    - vision heads are 72 wide where that divides the width, else there are two;
    - DeepStack taps blocks 8, 16, 24 of 27, else the first blocks, one per merger;
    - a picture's patch is 16 pixels wide.

    Raises CheckpointMismatchError.
    """
    found = {comfyui_name(module_name(name)): tuple(shape) for name, shape in shapes.items()}
    sizes = sizing_shapes(found, SIZING, source=source)
    vocab_size, hidden_size = sizes["model.embed_tokens.weight"]
    (head_dim,) = sizes["model.layers.0.self_attn.q_norm.weight"]
    heads, kv_heads = (
        max(1, sizes[f"model.layers.0.self_attn.{part}_proj.weight"][0] // head_dim) for part in "qk"
    )
    depth = count_layers(found, "model.layers.{}.input_layernorm.weight", source=source)
    check_rules(
        source,
        {
            f"model.layers.0.self_attn.q_norm.weight: {head_dim} channels are not even": head_dim % 2 == 0,
            f"model.layers.0.self_attn.k_proj.weight: {kv_heads} heads for {heads} of q_proj": heads
            % kv_heads
            == 0,
        },
    )
    released = RELEASED.text_encoder
    language = TextEncoderConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=sizes["model.layers.0.mlp.gate_proj.weight"][0],
        num_layers=released.num_layers if hidden_size == released.hidden_size else depth,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        mrope_section=_mrope_section(head_dim),
    )
    return _with_vision(language, found, sizes, source=source)


def _with_vision(
    config: TextEncoderConfig, found: Mapping[str, Shape], sizes: Mapping[str, Shape], *, source: Path
) -> TextEncoderConfig:
    """Return the config with the sizes of the vision tower. Raises CheckpointMismatchError."""
    hidden_size, positions = sizes["visual.patch_embed.proj.weight"][0], sizes["visual.pos_embed.weight"][0]
    num_heads = 2 if hidden_size % 72 else hidden_size // 72
    depth = count_layers(found, "visual.blocks.{}.norm1.weight", source=source)
    mergers = count_layers(found, "visual.deepstack_merger_list.{}.norm.weight", source=source)
    check_rules(
        source,
        {
            f"visual.patch_embed.proj.weight: {hidden_size} channels are no {num_heads} heads of a multiple"
            " of 4": hidden_size % (4 * num_heads) == 0,
            f"visual.pos_embed.weight: {positions} positions are no square": math.isqrt(positions) ** 2
            == positions,
            f"visual.deepstack_merger_list.{depth}.norm.weight: {mergers} mergers for {depth} blocks": mergers
            <= depth,
        },
    )
    released = RELEASED.text_encoder
    as_released = (depth, mergers) == (released.vision_num_layers, len(released.vision_deepstack_layers))
    return replace(
        config,
        vision_hidden_size=hidden_size,
        vision_intermediate_size=sizes["visual.blocks.0.mlp.linear_fc1.weight"][0],
        vision_num_layers=depth,
        vision_num_heads=num_heads,
        vision_num_positions=positions,
        vision_deepstack_layers=released.vision_deepstack_layers if as_released else tuple(range(mergers)),
    )


def _mrope_section(head_dim: int) -> tuple[int, int, int]:
    half = head_dim // 2
    side = half * 20 // 64
    return half - 2 * side, side, side
