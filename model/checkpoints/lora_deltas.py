"""What one LoRA file has for each module: factors, whole differences, and whether they are well formed.

Read from the header alone, by inspector and loader alike. Knows no transformer's sizes and imports no torch.

Letters: O rows and I columns of the changed weight, r the rank; down is [r, I], up is [O, r].
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from model.checkpoints.header import Header
from model.checkpoints.lora_keys import Dialect, LoraKey, parse_lora_key
from model.lora.errors import LoraFileError

RANK_MAX: Final = 4096
"""A turbo file's fused q, k, v has 384; what is wider than this costs as much as the weight it changes."""
FACTOR_DTYPES: Final = ("BF16", "F16", "F32")
OTHER_KINDS: Final = {
    "dora_scale": "a DoRA",
    "lora_magnitude_vector": "a DoRA",
    "hada_w": "a LoHa",
    "lokr_w": "a LoKr",
    "lora_mid": "a LoCon with a middle factor",
    "oft_": "an OFT",
    "glora": "a GLoRA",
}
"""What in a key tells adapters that are no pair of factors: none of the file is applied."""
NO_MODULE: Final = "name no linear of this transformer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Names of the tensors of one pair of factors."""

    down: str
    up: str
    alpha: str | None
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one file changes in one linear."""

    dialect: Dialect
    """It decides the order of the rows."""
    pairs: Mapping[str, Pair]
    """By the part of a fused weight, `q`, `k` or `v`; by an empty name for the whole."""
    diff: str | None = None
    """A whole difference of the weight, [O, I]."""
    diff_bias: str | None = None
    """A difference of the bias, [O]."""


def refuse_other_kinds(header: Header) -> None:
    """Raise LoraFileError for adapters that are no pairs of factors."""
    for name in header.tensors:
        kind = next((kind for mark, kind in OTHER_KINDS.items() if f".{mark}" in name), None)
        if kind is not None:
            raise LoraFileError(
                header.path, f"is {kind} ({name}), and only pairs of low-rank factors are applied here"
            )


Keys = dict[tuple[str, str], tuple[str, LoraKey]]
"""Part and kind (`down`, `up`, `alpha`, `diff`, ...) to the tensor's name and what it is."""


def keys_by_module(header: Header, dropped: dict[str, list[str]]) -> dict[str, Keys]:
    """Sort keys by the module that they change; those of none go to `dropped`. Raises LoraFileError."""
    modules: dict[str, Keys] = {}
    for name in header.tensors:
        key = parse_lora_key(name)
        if key is None:
            dropped.setdefault(NO_MODULE, []).append(name)
            continue
        module, _, part = key.module.removesuffix("]").partition("[")
        kind = name.rpartition(".")[2] if key.role == "other" else key.role
        keys = modules.setdefault(module, {})
        if (part, kind) in keys:
            raise LoraFileError(
                header.path, f"{keys[part, kind][0]} and {name} say the same; a file has one of them"
            )
        keys[part, kind] = name, key
    return modules


def delta_of(header: Header, module: str, keys: Keys) -> Delta:
    """Check what a file has for one module and put it together. Raises LoraFileError."""
    dialects = {key.dialect for (_, kind), (_, key) in keys.items() if kind != "alpha"}
    if len(dialects) != 1:
        spellings = " and ".join(sorted(dialects)) or "an alpha without factors"
        raise LoraFileError(header.path, f"{module} is spelled as {spellings}; a module has one spelling")
    parts = sorted({part for part, _ in keys})
    if len(parts) > 1 and "" in parts:
        raise LoraFileError(header.path, f"{module} is there whole and in parts; a file has one of them")
    for name, _ in keys.values():
        _check_dtype(header, name)
    names = {place: name for place, (name, _) in keys.items()}
    if any(part and kind.startswith("diff") for part, kind in keys):
        raise LoraFileError(header.path, f"{module} has a whole difference of a part of a fused weight")
    if ("", "diff") in names and _has_factors(names, ""):
        raise LoraFileError(
            header.path, f"{module} has factors and a whole difference; a module has one of them"
        )
    return Delta(
        dialect=dialects.pop(),
        pairs={part: _pair(header, module, names, part) for part in parts if _has_factors(names, part)},
        diff=names.get(("", "diff")),
        diff_bias=names.get(("", "diff_b")),
    )


def _check_dtype(header: Header, name: str) -> None:
    dtype = header.tensors[name].dtype
    if dtype not in FACTOR_DTYPES:
        raise LoraFileError(header.path, f"{name} is {dtype}; factors are bf16, fp16 or fp32")


def _has_factors(names: Mapping[tuple[str, str], str], part: str) -> bool:
    return any((part, kind) in names for kind in ("down", "up", "alpha"))


def _pair(header: Header, module: str, names: Mapping[tuple[str, str], str], part: str) -> Pair:
    what = f"{module}[{part}]" if part else module
    lacking = [kind for kind in ("down", "up") if (part, kind) not in names]
    if lacking:
        raise LoraFileError(header.path, f"{what} lacks its {' and its '.join(lacking)} factor")
    tensors = {
        kind: header.tensors[names[part, kind]] for kind in ("down", "up", "alpha") if (part, kind) in names
    }
    down, up = tensors["down"].shape, tensors["up"].shape
    if len(down) != 2 or len(up) != 2 or down[0] != up[1]:
        raise LoraFileError(
            header.path, f"{what}: factors of {list(down)} and {list(up)} are no [r, I] and [O, r]"
        )
    if not 1 <= down[0] <= RANK_MAX:
        raise LoraFileError(header.path, f"{what} has rank {down[0]:,}; 1 to {RANK_MAX:,} are applied")
    if "alpha" in tensors and math.prod(tensors["alpha"].shape) != 1:
        raise LoraFileError(
            header.path, f"{what} has an alpha of {list(tensors['alpha'].shape)}, which is one number"
        )
    return Pair(
        down=names[part, "down"], up=names[part, "up"], alpha=names.get((part, "alpha")), rank=down[0]
    )
