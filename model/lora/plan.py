"""What of a LoRA file fits a transformer: every tensor is matched, or dropped with its reason.

Told from the header alone, so a file for another model is refused before any weight is read. A file that is
malformed (half a pair, factors that do not multiply) is refused whole, whatever is allowed.

Letters: O rows and I columns of the changed weight, r the rank; down is [r, I], up is [O, r].
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final

from torch import nn

from model.checkpoints.header import Header
from model.checkpoints.lora_deltas import (
    NO_MODULE,
    Delta,
    Pair,
    delta_of,
    keys_by_module,
    refuse_other_kinds,
)
from model.checkpoints.names import PARTS
from model.lora.errors import LoraFileError, LoraPartialError, told_dropped
from model.quant.linear import QuantLinear

Targets = Mapping[str, tuple[int, int]]
"""Linear of the transformer to [O, I] of its weight."""
ADALN: Final = "adaln_proj.linear"
PRUNED: Final = (
    "change AdaLN weights {found:,} columns wide where this pruned transformer has {wanted};"
    " --lora-time-embedder FULL_FILE projects them"
)
REPLACED: Final = (
    "replace a weight, which a side branch cannot (PDD files choose one of 32 heads at each step, which this"
    " version does not compute)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraPlan:
    """What of one file changes which linears, and what was left out."""

    header: Header
    deltas: Mapping[str, Delta]
    """By the linear's name, in the order of the file."""
    dropped: Mapping[str, list[str]]
    """Reason to names of tensors."""

    @property
    def total(self) -> int:
        return len(self.header.tensors)

    @property
    def matched(self) -> int:
        return self.total - sum(map(len, self.dropped.values()))

    @property
    def dialects(self) -> list[str]:
        return sorted({delta.dialect for delta in self.deltas.values()})


def targets_of(transformer: nn.Module) -> dict[str, tuple[int, int]]:
    """Return the linears that a LoRA can change, plain and quantised, by name, and [O, I] of each."""
    return {
        name: (module.out_features, module.in_features)
        for name, module in transformer.named_modules()
        if isinstance(module, nn.Linear | QuantLinear)
    }


def plan_lora(
    header: Header, targets: Targets, *, allow_partial: bool = False, adaln_width: int | None = None
) -> LoraPlan:
    """Match a file's tensors with the linears in `targets`.

    AdaLN deltas of `adaln_width` columns fit as well: they will be projected.
    Raises LoraFileError, also where nothing fits, and LoraPartialError unless `allow_partial`.
    """
    refuse_other_kinds(header)
    dropped: dict[str, list[str]] = {}
    deltas: dict[str, Delta] = {}
    for module, keys in keys_by_module(header, dropped).items():
        delta = delta_of(header, module, keys)
        kinds = {kind for _, kind in keys}
        reason = _misfit(header, module, delta, targets=targets, kinds=kinds, adaln_width=adaln_width)
        if reason is None:
            deltas[module] = delta
        else:
            dropped.setdefault(reason, []).extend(name for name, _ in keys.values())
    plan = LoraPlan(header=header, deltas=deltas, dropped=dropped)
    if not deltas:
        raise LoraFileError(
            header.path, f"nothing in it fits: {told_dropped(dropped) or 'it has no tensors'}"
        )
    if dropped and not allow_partial:
        raise LoraPartialError(header.path, matched=plan.matched, total=plan.total, dropped=dropped)
    return plan


def _misfit(
    header: Header,
    module: str,
    delta: Delta,
    *,
    targets: Targets,
    kinds: Set[str],
    adaln_width: int | None,
) -> str | None:
    """Say why a delta has no place in this transformer, in words that follow the number of its tensors."""
    if kinds & {"set_weight", "set_bias"}:
        return REPLACED
    if module not in targets:
        return NO_MODULE
    rows, columns = targets[module]
    sizes = [
        (_size(header, pair), rows // len(PARTS) if part else rows) for part, pair in delta.pairs.items()
    ]
    sizes += [(header.tensors[delta.diff].shape, rows)] if delta.diff is not None else []
    of_full_adaln = module.endswith(ADALN) and delta.diff is None
    for size, wanted_rows in sizes:
        if size == (wanted_rows, columns) or (of_full_adaln and size == (wanted_rows, adaln_width)):
            continue
        if of_full_adaln and size[0] == wanted_rows and size[-1] > columns:
            return PRUNED.format(found=size[-1], wanted=columns)
        return f"change weights of {_by(size)} where this transformer has {_by((wanted_rows, columns))}"
    if delta.diff_bias is not None and header.tensors[delta.diff_bias].shape != (rows,):
        return f"change biases of {_by(header.tensors[delta.diff_bias].shape)} where this one has {rows:,}"
    return None


def _size(header: Header, pair: Pair) -> tuple[int, ...]:
    return header.tensors[pair.up].shape[0], header.tensors[pair.down].shape[1]


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(f"{side:,}" for side in shape)
