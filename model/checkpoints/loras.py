"""What a LoRA file changes: modules, ranks, alphas, targets; and what of it is no pair of factors."""

import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from model.checkpoints.architecture import solve_dims
from model.checkpoints.descriptions import describe
from model.checkpoints.header import Header, OpenCheckpoint
from model.checkpoints.lora_alphas import default_alpha
from model.checkpoints.lora_deltas import Delta, delta_of, keys_by_module, refuse_other_kinds
from model.checkpoints.lora_keys import LoraKey, parse_lora_key
from model.checkpoints.names import PARTS, pattern_of
from model.lora.errors import LoraFileError
from model.shapes import Shape

BASE: Final = "dit_full_bf16"
"""The pruned layout's linears are the same but for the width of what AdaLN reads."""
HEAD_DIM: Final = 128
"""No factor tells it."""
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
    default_alpha: float | None
    """Of the others, from the metadata; None for a factor of 1."""
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
        alphas = [self.alphas.get(module, self.default_alpha) for module in self.ranks]
        counts = Counter("none" if alpha is None else f"{alpha:g}" for alpha in alphas)
        return dict(sorted(counts.items()))


def read_lora(file: OpenCheckpoint) -> FoundLora:
    """Read the keys' meaning and the alphas; no factor is read. Raises CheckpointFileError."""
    header = file.header
    parsed = {name: parse_lora_key(name) for name in header.tensors}
    keys = {name: key for name, key in parsed.items() if key is not None}
    deltas, problems = _deltas(header)
    strange, misfits = _misfits(header, deltas)
    ranks = {
        f"{module}[{part}]" if part else module: pair.rank
        for module, delta in deltas.items()
        for part, pair in delta.pairs.items()
    }
    widths = {
        header.tensors[pair.down].shape[1]
        for module, delta in deltas.items()
        if _ADALN.search(module)
        for pair in delta.pairs.values()
    }
    unmatched = [name for name, key in parsed.items() if key is None or key.module in strange]
    default, refusals = _default_alpha(header, deltas)
    return FoundLora(
        dialects=tuple(sorted({key.dialect for key in keys.values()})),
        ranks=ranks,
        alphas=_alphas(file, keys),
        default_alpha=default,
        targets=tuple(sorted({pattern_of(module) for module in ranks})),
        adaln_width=max(widths, default=None),
        others=tuple(sorted(name for name, key in keys.items() if key.role == "other")),
        unmatched=tuple(sorted(unmatched)),
        problems=(*problems, *misfits, *refusals),
    )


def _deltas(header: Header) -> tuple[dict[str, Delta], list[str]]:
    """Return what is well formed, by module, and what is wrong with the rest."""
    deltas: dict[str, Delta] = {}
    problems = []
    try:
        refuse_other_kinds(header)
        modules = keys_by_module(header, {})
    except LoraFileError as error:
        return {}, [error.reason]
    for module, module_keys in modules.items():
        try:
            deltas[module] = delta_of(header, module, module_keys)
        except LoraFileError as error:
            problems.append(error.reason)
    return deltas, problems


def _misfits(header: Header, deltas: Mapping[str, Delta]) -> tuple[set[str], list[str]]:
    """Return the modules that are no linears, and which sizes no one transformer has together."""
    found = {module: shapes for module, delta in deltas.items() if (shapes := _shapes(header, delta))}
    weights = {f"{module}.weight": shapes[0] for module, shapes in found.items()}
    dims = solve_dims(BASE, weights, fixed={"HD": HEAD_DIM})
    wanted = {pattern_of(tensor.name): tensor.shape for tensor in describe(BASE, dims=dims).tensors}
    patterns = {module: wanted.get(pattern_of(f"{module}.weight"), ()) for module in deltas}
    strange = {module for module, shape in patterns.items() if len(shape) != 2}
    return strange, [
        f"{module} changes a weight of {list(shape)}, where a transformer of the others' sizes has"
        f" {list(patterns[module])}"
        for module, shapes in found.items()
        for shape in shapes
        if module not in strange and shape != patterns[module]
    ]


def _shapes(header: Header, delta: Delta) -> list[Shape]:
    """Return the shapes of the weight that a delta changes: several only where its parts disagree."""
    shapes = {
        (header.tensors[pair.up].shape[0] * (len(PARTS) if part else 1), header.tensors[pair.down].shape[1])
        for part, pair in delta.pairs.items()
    }
    diff = [] if delta.diff is None else [header.tensors[delta.diff].shape]
    return sorted(shapes) + diff


def _alphas(file: OpenCheckpoint, keys: Mapping[str, LoraKey]) -> dict[str, float]:
    names = [name for name, key in keys.items() if key.role == "alpha"]
    found = {}
    for name in names[:ALPHAS_MAX]:
        value = _scalar(file, name)
        if value is not None:
            found[keys[name].module] = value
    return found


def _default_alpha(header: Header, deltas: Mapping[str, Delta]) -> tuple[float | None, list[str]]:
    """Return what the loader takes for pairs without an alpha, or why it refuses them."""
    if all(pair.alpha is not None for delta in deltas.values() for pair in delta.pairs.values()):
        return None, []
    try:
        return default_alpha(header), []
    except LoraFileError as error:
        return None, [error.reason]


def _scalar(file: OpenCheckpoint, name: str) -> float | None:
    """Return a tensor of one floating-point element; None for any other."""
    entry = file.header.tensors[name]
    codes = {("F32", 4): "<f", ("F16", 2): "<e", ("F64", 8): "<d", ("BF16", 2): "<f"}
    code = codes.get((entry.dtype, entry.end - entry.begin))
    if code is None:
        return None
    data = file.read_tensor(name)
    value: float = struct.unpack(code, b"\0\0" + data if entry.dtype == "BF16" else data)[0]
    return value
