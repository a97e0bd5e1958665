"""Names and shapes of a text encoder file: ComfyUI's names, the official ones, the config that shapes imply.

A module is named as in transformers' bare `Qwen3VLModel` (`language_model.*`, `visual.*`). Imports no torch.
Sources: Qwen3-VL-32B `config.json`; ComfyUI's qwen3vl_32b_minimax_h3 files.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from model.config import RELEASED, TextEncoderConfig
from model.errors import CheckpointMismatchError

_PREFIXES: Final = (
    ("model.language_model.", "language_model."),  # Qwen3VLForConditionalGeneration
    ("model.visual.", "visual."),
    ("model.", "language_model."),  # ComfyUI; its `visual.` is already the module's
)
_MARKS: Final = {
    "embed": "language_model.embed_tokens.weight",
    "q_norm": "language_model.layers.0.self_attn.q_norm.weight",
    "q_proj": "language_model.layers.0.self_attn.q_proj.weight",
    "k_proj": "language_model.layers.0.self_attn.k_proj.weight",
    "gate_proj": "language_model.layers.0.mlp.gate_proj.weight",
    "patch_embed": "visual.patch_embed.proj.weight",
    "positions": "visual.pos_embed.weight",
    "vision_fc1": "visual.blocks.0.mlp.linear_fc1.weight",
}
_RANKS: Final = {"q_norm": 1, "patch_embed": 5}
"""Number of dimensions where it is not 2."""


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
    - DeepStack taps blocks 8, 16, 24 of 27, else the first blocks, one per merger.

    Raises CheckpointMismatchError.
    """
    found = {module_name(name): tuple(shape) for name, shape in shapes.items()}
    marks = _sizing_shapes(found, source=source)
    hidden_size, vision_hidden_size = marks["embed"][1], marks["patch_embed"][0]
    head_dim = marks["q_norm"][0]
    depth = _count(found, "language_model.layers.")
    released = RELEASED.text_encoder
    return TextEncoderConfig(
        vocab_size=marks["embed"][0],
        hidden_size=hidden_size,
        intermediate_size=marks["gate_proj"][0],
        num_layers=released.num_layers if hidden_size == released.hidden_size else depth,
        num_heads=max(1, marks["q_proj"][0] // head_dim),
        num_kv_heads=max(1, marks["k_proj"][0] // head_dim),
        head_dim=head_dim,
        mrope_section=_mrope_section(head_dim),
        vision_hidden_size=vision_hidden_size,
        vision_intermediate_size=marks["vision_fc1"][0],
        vision_num_layers=_count(found, "visual.blocks."),
        vision_num_heads=2 if vision_hidden_size % 72 else vision_hidden_size // 72,
        vision_patch=marks["patch_embed"][-1],
        vision_num_positions=marks["positions"][0],
        vision_deepstack_layers=_deepstack_layers(found),
    )


def _sizing_shapes(found: Mapping[str, tuple[int, ...]], *, source: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes that fix the architecture, keyed as in `_MARKS`. Raises CheckpointMismatchError."""
    missing = [comfyui_name(name) for name in _MARKS.values() if name not in found]
    if missing:
        raise CheckpointMismatchError(source, missing=missing)
    marks = {key: found[name] for key, name in _MARKS.items()}
    wrong = [
        f"{comfyui_name(_MARKS[key])} {list(shape)}"
        for key, shape in marks.items()
        if len(shape) != _RANKS.get(key, 2) or 0 in shape
    ]
    if wrong:
        raise CheckpointMismatchError(source, wrong=wrong)
    return marks


def _mrope_section(head_dim: int) -> tuple[int, int, int]:
    half = head_dim // 2
    side = half * 20 // 64
    return half - 2 * side, side, side


def _deepstack_layers(names: Iterable[str]) -> tuple[int, ...]:
    released = RELEASED.text_encoder
    depth, mergers = _count(names, "visual.blocks."), _count(names, "visual.deepstack_merger_list.")
    if depth == released.vision_num_layers and mergers == len(released.vision_deepstack_layers):
        return released.vision_deepstack_layers
    return tuple(range(mergers))


def _count(names: Iterable[str], prefix: str) -> int:
    """Return one more than the largest index after `prefix`; a gap shows later, as a missing tensor."""
    heads = (name.removeprefix(prefix).partition(".")[0] for name in names if name.startswith(prefix))
    return max((int(head) for head in heads if head.isdecimal()), default=-1) + 1
