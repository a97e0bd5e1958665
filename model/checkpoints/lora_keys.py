"""Keys of LoRA files: which module of the transformer a key changes, in any of the spellings that exist.

Modules are named as in ComfyUI's transformer, without `.weight`. Sources: ComfyUI, diffusers/PEFT, kohya and
musubi-tuner, DiffSynth-Studio, ai-toolkit; the published turbo files.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from model.checkpoints.descriptions import describe
from model.checkpoints.names import RENAMINGS, comfy_name

Role = Literal["down", "up", "alpha", "other"]
Dialect = Literal["comfyui", "bare", "kohya", "diffsynth", "diffusers"]
_SUFFIXES: Final[tuple[tuple[str, Role], ...]] = (
    (".lora_A.default.weight", "down"), (".lora_B.default.weight", "up"),
    (".lora_A.weight", "down"), (".lora_B.weight", "up"),
    (".lora_down.weight", "down"), (".lora_up.weight", "up"),
    (".lora.down.weight", "down"), (".lora.up.weight", "up"),
    (".alpha", "alpha"),
    (".diff", "other"), (".diff_b", "other"), (".set_weight", "other"), (".set_bias", "other"),
)  # fmt: skip
KOHYA: Final = "lora_unet_"
_PREFIXES: Final = (
    "diffusion_model.", "model.diffusion_model.", "base_model.model.", "transformer.", "transformer_ref.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoraKey:
    """What one tensor of a LoRA file is."""

    module: str
    """ComfyUI's name; `[q]`, `[k]`, `[v]` behind it mark a part of a fused matrix."""
    role: Role
    dialect: Dialect


def is_lora(names: Iterable[str]) -> bool:
    """Say whether any name is that of a low-rank factor."""
    factors = tuple(suffix for suffix, role in _SUFFIXES if role in ("down", "up"))
    return any(name.endswith(factors) for name in names)


def parse_lora_key(name: str) -> LoraKey | None:
    """Return what a key changes; None for one that is no LoRA's, or names no module of the transformer."""
    suffix, role = next(((s, r) for s, r in _SUFFIXES if name.endswith(s)), ("", None))
    if role is None:
        return None
    module = name[: -len(suffix)]
    if module.startswith(KOHYA):
        # Flattened names are looked up, never split: parts of them have underscores of their own.
        known = _flattened().get(_numbers_out(module.removeprefix(KOHYA), "_"))
        if known is None:
            return None
        return LoraKey(_numbers_in(known, re.findall(r"(?<=_)\d+(?=_)", module)), role, "kohya")
    prefix = next((p for p in _PREFIXES if module.startswith(p)), "")
    own = module.removeprefix(prefix)
    if _numbers_out(own, ".") in _modules():
        default = ".default." in suffix
        dialect: Dialect = "diffsynth" if default else "comfyui" if prefix else "bare"
        return LoraKey(own, role, dialect)
    renamed = comfy_name(f"{own}.", RENAMINGS["transformer", "diffusers"]).removesuffix(".")
    if renamed != own and _numbers_out(renamed.partition("[")[0], ".") in _modules():
        return LoraKey(renamed, role, "diffusers")
    return None


def _numbers_out(name: str, separator: str) -> str:
    return re.sub(rf"(?<={re.escape(separator)})\d+(?={re.escape(separator)})", "*", name)


def _numbers_in(pattern: str, numbers: list[str]) -> str:
    for number in numbers:
        pattern = pattern.replace("*", number, 1)
    return pattern


@functools.cache
def _modules() -> Mapping[str, tuple[int, ...]]:
    """Module pattern to weight shape of every weight of the released full transformer."""
    return {
        _numbers_out(tensor.name.removesuffix(".weight"), "."): tensor.shape
        for tensor in describe("dit_full_bf16").tensors
        if tensor.name.endswith(".weight")
    }


@functools.cache
def _flattened() -> Mapping[str, str]:
    return {module.replace(".", "_"): module for module in _modules()}
