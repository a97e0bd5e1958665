"""Parts of each model, for sums of bytes and parameters, told by ComfyUI's names."""

import re
from collections.abc import Mapping
from typing import Final

_RULES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "transformer": (
        ("refiner", r"token_refiner\."),
        ("attention", r"blocks\.\d+\.attn\."),
        ("mlp", r"blocks\.\d+\.mlp\."),
        ("adaln", r"(blocks\.\d+|final_layer)\.adaln_proj\."),
        ("time", r"time_embedder\.|adaln_t_table"),
        ("norms", r"blocks\.\d+\.norm"),
        ("embedders", r"(video_patch|audio_patch|condition)_proj\.|rope\."),
        ("heads", r"final_layer\."),
    ),
    "text_encoder": (
        ("embedding", r"model\.embed_tokens\."),
        ("attention", r"model\.layers\.\d+\.self_attn\."),
        ("mlp", r"model\.layers\.\d+\.mlp\."),
        ("norms", r"model\.layers\.\d+\.\w+norm\."),
        ("vision", r"visual\."),
    ),
    "video_vae": (
        ("encoder", r"encoder\.|quant_conv\."),
        ("decoder", r"decoder\.|post_quant_conv\."),
        ("statistics", r"latents_"),
    ),
    "audio_vae": (
        ("encoder", r"encoder\.|pre_block\.|mean_proj\.|logs_proj\."),
        ("decoder", r"decoder\.|dec_in_proj\."),
        ("statistics", r"latents_"),
    ),
}
_COMPILED: Final = {
    family: tuple((part, re.compile(pattern)) for part, pattern in rules) for family, rules in _RULES.items()
}


def part_of(family: str | None, name: str) -> str:
    """Return the part's name; `other` for what belongs to none."""
    rules = _COMPILED.get(family or "", ())
    return next((part for part, pattern in rules if pattern.match(name)), "other")
