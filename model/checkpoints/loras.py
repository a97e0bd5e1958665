"""What a LoRA file changes: modules, ranks, alphas, targets; and what of it is no pair of factors."""

import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from model.checkpoints.header import CheckpointFile
from model.checkpoints.header_text import TensorEntry
from model.checkpoints.lora_keys import LoraKey, parse_lora_key
from model.checkpoints.names import pattern_of

ALPHAS_MAX: Final = 20_000
_ADALN: Final = re.compile(r"adaln_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLora:
    """A LoRA file, read key by key."""

    dialects: tuple[str, ...]
    ranks: Mapping[str, int]
    """Module to rank."""
    alphas: Mapping[str, float]
    """Module to alpha, where the file has one."""
    targets: tuple[str, ...]
    adaln_width: int | None
    others: tuple[str, ...]
    """Keys that replace or add something other than a low-rank product."""
    unmatched: tuple[str, ...]
    """Keys that name nothing in the transformer."""
    problems: tuple[str, ...]

    @property
    def rank_counts(self) -> dict[str, int]:
        counts = Counter(self.ranks.values())
        return {str(rank): counts[rank] for rank in sorted(counts)}

    @property
    def alpha_counts(self) -> dict[str, int]:
        counts = Counter(f"{self.alphas[m]:g}" if m in self.alphas else "none" for m in self.ranks)
        return dict(sorted(counts.items()))


def read_lora(file: CheckpointFile) -> FoundLora:
    """Read the keys' meaning and the alphas; no factor is read. Raises CheckpointFileError."""
    keys: dict[str, LoraKey] = {}
    unmatched = []
    for name in file.header.tensors:
        key = parse_lora_key(name)
        if key is None:
            unmatched.append(name)
        else:
            keys[name] = key
    factors: dict[str, dict[str, TensorEntry]] = {}
    for name, key in keys.items():
        if key.role in ("down", "up"):
            factors.setdefault(key.module, {})[key.role] = file.header.tensors[name]
    ranks, problems, widths = {}, [], set()
    for module, pair in factors.items():
        down, up = pair.get("down"), pair.get("up")
        if down is None or up is None:
            problems.append(f"{module} has only one of its two factors")
        elif len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1]:
            problems.append(f"{module}: factors {list(down.shape)} and {list(up.shape)} do not multiply")
        else:
            ranks[module] = down.shape[0]
            widths |= {down.shape[1]} if _ADALN.search(module) else set()
    return FoundLora(
        dialects=tuple(sorted({key.dialect for key in keys.values()})),
        ranks=ranks,
        alphas=_alphas(file, keys),
        targets=tuple(sorted({pattern_of(module) for module in ranks})),
        adaln_width=max(widths, default=None),
        others=tuple(sorted(name for name, key in keys.items() if key.role == "other")),
        unmatched=tuple(sorted(unmatched)),
        problems=tuple(problems),
    )


def _alphas(file: CheckpointFile, keys: Mapping[str, LoraKey]) -> dict[str, float]:
    names = [name for name, key in keys.items() if key.role == "alpha"]
    found = {}
    for name in names[:ALPHAS_MAX]:
        value = _scalar(file, name)
        if value is not None:
            found[keys[name].module] = value
    return found


def _scalar(file: CheckpointFile, name: str) -> float | None:
    """Return a tensor of one floating-point element; None for any other."""
    entry = file.header.tensors[name]
    codes = {("F32", 4): "<f", ("F16", 2): "<e", ("F64", 8): "<d", ("BF16", 2): "<f"}
    code = codes.get((entry.dtype, entry.end - entry.begin))
    if code is None:
        return None
    data = file.read_tensor(name)
    value: float = struct.unpack(code, b"\0\0" + data if entry.dtype == "BF16" else data)[0]
    return value
