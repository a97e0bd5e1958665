"""Tensor names: wrappers taken off, numbers written as `*`, other layouts' names turned into ComfyUI's.

Three layouts are known. ComfyUI's, which this runtime's modules have; diffusers', with split q, k, v; and the
original one of MiniMax and Qwen, which for the transformer has ComfyUI's names and another order of rows.
Sources: diffusers 0.42.1; the published headers.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from model.shapes import Shape

Architecture = Literal["transformer", "text_encoder", "video_vae", "audio_vae"]
Layout = Literal["comfyui", "diffusers", "original"]
DIFFUSERS_MARKS: Final[Mapping[str, tuple[str, ...]]] = {
    "transformer": ("audio_proj_in.weight", "proj_in.weight"),
    "video_vae": (
        "decoder.proj_in.weight",
        "decoder.transformer_blocks.0.scale1",
        "post_quant_conv.weight",
    ),
}
"""Tensors by which diffusers' layout of a model is known; the first is in no other layout."""
ENCODER_PREFIXES: Final[Mapping[Architecture, tuple[str, ...]]] = {
    "video_vae": ("encoder.", "quant_conv."),
    "audio_vae": ("encoder.", "pre_block.", "mean_proj.", "logs_proj."),
}
DECODER_PREFIXES: Final[Mapping[Architecture, tuple[str, ...]]] = {
    "video_vae": ("decoder.", "post_quant_conv."),
    "audio_vae": ("decoder.", "dec_in_proj."),
}
"""Names of the halves of a VAE's file, of which the encoder's may be absent; statistics belong to both."""
WRAPPER_PREFIXES: Final = ("model.diffusion_model.", "diffusion_model.")
PARTS: Final = ("q", "k", "v")
"""Parts of a fused weight, in the order of its rows; equally many rows each."""
PART: Final = re.compile(r"\[([qkv])\]$")
"""Behind the name of a module that is a part of one."""
_NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")

_DIFFUSERS_TRANSFORMER: Final = (
    (r"^transformer_blocks\.", "blocks."),
    (r"^token_refiner\.refiner_blocks\.", "token_refiner.blocks."),
    (r"^time_embedder\.linear_1\.", "time_embedder.proj_in."),
    (r"^time_embedder\.linear_2\.", "time_embedder.proj_out."),
    (r"^proj_in\.", "video_patch_proj."),
    (r"^audio_proj_in\.", "audio_patch_proj."),
    (r"^context_embedder\.", "condition_proj."),
    (r"^norm_out\.norm\.", "final_layer.norm."),
    (r"^norm_out\.linear\.", "final_layer.adaln_proj.linear."),
    (r"^proj_out\.", "final_layer.video_out."),
    (r"^audio_proj_out\.", "final_layer.audio_out."),
    (r"\.attn\.norm_([qk])\.", r".attn.\1_norm."),
    (r"\.attn\.to_([qkv])\.", r".attn.qkv_proj[\1]."),
    (r"\.attn\.to_out\.0\.", ".attn.out_proj."),
    (r"\.ff\.net\.0\.proj\.", ".mlp.fc1."),
    (r"\.ff\.net\.2\.", ".mlp.fc2."),
)
_DIFFUSERS_VIDEO_VAE: Final = (
    (
        r"^encoder\.down_blocks\.(\d+)\.resnets\.(\d+)\.conv_shortcut\.",
        r"encoder.down.\1.block.\2.nin_shortcut.",
    ),
    (r"^encoder\.down_blocks\.(\d+)\.resnets\.(\d+)\.", r"encoder.down.\1.block.\2."),
    (r"^encoder\.down_blocks\.(\d+)\.downsamplers\.0\.", r"encoder.down.\1.downsample."),
    (r"^decoder\.proj_in\.", "decoder.x_embedder."),
    (r"\.attn\.to_([qkv])\.", r".attn.to_qkv[\1]."),
    (r"\.attn\.to_out\.0\.", ".attn.to_out."),
    (r"\.ff\.net\.0\.proj\.", ".ff.w1."),
    (r"\.ff\.net\.2\.", ".ff.w2."),
)
_ORIGINAL_TEXT_ENCODER: Final = ((r"^model\.language_model\.", "model."), (r"^model\.visual\.", "visual."))
_ORIGINAL_AUDIO_VAE: Final = ((r"\.weight_v$", ".weight"),)
"""Weight norm, folded in ComfyUI's file; `weight_g` has no counterpart there."""

Renaming = tuple[tuple[re.Pattern[str], str], ...]


def _compiled(rules: Iterable[tuple[str, str]]) -> Renaming:
    return tuple((re.compile(pattern), new) for pattern, new in rules)


RENAMINGS: Final[Mapping[tuple[Architecture, Layout], Renaming]] = {
    ("transformer", "comfyui"): (),
    ("transformer", "diffusers"): _compiled(_DIFFUSERS_TRANSFORMER),
    ("text_encoder", "comfyui"): (),
    ("text_encoder", "original"): _compiled(_ORIGINAL_TEXT_ENCODER),
    ("video_vae", "comfyui"): (),
    ("video_vae", "diffusers"): _compiled(_DIFFUSERS_VIDEO_VAE),
    ("audio_vae", "comfyui"): (),
    ("audio_vae", "original"): _compiled(_ORIGINAL_AUDIO_VAE),
}
"""Family and layout to what turns its names into ComfyUI's; `[q]` marks one of several that are one there."""


def comfy_name(name: str, renaming: Renaming) -> str:
    """Return ComfyUI's name of a tensor, or of a module's that ends in a dot; a part is told by `[q]`."""
    for pattern, new in renaming:
        name = pattern.sub(new, name)
    return name


def wrapper_prefix(names: Iterable[str]) -> str:
    """Return the prefix that every name carries (ComfyUI strips one), or an empty string."""
    found = list(names)
    return next((p for p in WRAPPER_PREFIXES if found and all(name.startswith(p) for name in found)), "")


def whole_name(name: str) -> str:
    """Return the name of what `to_qkv[q].weight` is a part of; any other as it is."""
    module, dot, suffix = name.rpartition(".")
    return f"{PART.sub('', module)}{dot}{suffix}"


def fuse(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Put the parts of split matrices together again: `to_qkv[q]`, `[k]` and `[v]` are one of all their rows.

    A part that is missing leaves too few rows, which the comparison then tells.
    """
    fused: dict[str, Shape] = {}
    for name, shape in shapes.items():
        whole = whole_name(name)
        before = fused.get(whole)
        if whole != name and before and shape:
            shape = (before[0] + shape[0], *shape[1:])  # noqa: PLW2901 - one matrix grows part by part
        fused[whole] = shape
    return fused


def pattern_of(name: str) -> str:
    """Return the name with every part that is a number written as `*`."""
    return _NUMBER.sub("*", name)
