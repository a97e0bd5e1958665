"""From a LoRA file to branches in the transformer's own layout: parts fused, rows in our order, alphas read.

A fused linear takes its parts' factors side by side: down is stacked, up is block-diagonal, so the product is
exactly that of the parts. delta = alpha / r · up · down; without an alpha the factor is 1, unless the file's
metadata has one. Sources: PEFT; kohya; ComfyUI; the published turbo files.

Letters: O rows and I columns of the changed weight, r the rank.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from model.checkpoints.header import OpenCheckpoint
from model.checkpoints.holes import find_holes
from model.checkpoints.lora_alphas import checked_alpha, default_alpha
from model.checkpoints.lora_deltas import Delta, Pair
from model.checkpoints.names import PARTS, Layout
from model.config import TransformerConfig
from model.dit import H3Transformer
from model.dit.row_order import row_order
from model.loading.tensors import read_tensor
from model.lora.adaln import Projection, projected
from model.lora.branch import Branch, LoraLinear
from model.lora.errors import LoraFileError
from model.lora.plan import LoraPlan
from model.quant.linear import QuantLinear
from queue_schemas import limits

ROWS_OF: Final[Mapping[str, Layout]] = {"diffsynth": "original", "diffusers": "diffusers"}
"""Dialect to the layout on whose rows its files were trained; ComfyUI's where it is not here.

DiffSynth trains on MiniMax' own shards and can be told from others by PEFT's `.default.` alone.
"""


def read_branches(
    plan: LoraPlan, transformer: H3Transformer, projection: Projection | None = None
) -> dict[str, Branch]:
    """Read what the plan matched, each branch to where its linear lies and in the dtype of its input.

    `projection` is for AdaLN deltas that are wider than their linear.
    Raises LoraFileError for values that are not finite, CheckpointFileError.
    """
    pairs = [pair for delta in plan.deltas.values() for pair in delta.pairs.values()]
    alpha = default_alpha(plan.header) if any(pair.alpha is None for pair in pairs) else None
    branches = {}
    with OpenCheckpoint(plan.header.path, known=plan.header) as file:
        unwritten = find_holes(file).tensors
        if unwritten:
            raise LoraFileError(
                file.path,
                f"{len(unwritten)} tensors were never written, such as {unwritten[0]}; fetch it again",
            )
        for module, delta in plan.deltas.items():
            branch = _branch(file, module, delta, alpha=alpha, config=transformer.config)
            linear = _linear(transformer, module)
            if branch.down is not None and branch.down.shape[1] != linear.in_features:
                assert projection is not None, "the plan allows no other width without one"
                branch = projected(branch, projection)
            dtype = linear.weight.dtype if isinstance(linear, nn.Linear) else transformer.compute_dtype
            branches[module] = branch.to(linear.weight.device, dtype)
            _check_finite(file, module, branches[module])
    return branches


def _linear(transformer: H3Transformer, module: str) -> nn.Linear | QuantLinear:
    linear = transformer.get_submodule(module)
    if isinstance(linear, LoraLinear):
        linear = linear.base
    assert isinstance(linear, nn.Linear | QuantLinear)
    return linear


def _branch(
    file: OpenCheckpoint, module: str, delta: Delta, *, alpha: float | None, config: TransformerConfig
) -> Branch:
    """Return one linear's branch, float32 on the CPU."""
    down, up, scale = None, None, 1.0
    if delta.diff is not None:
        up = _read(file, delta.diff)
    elif delta.pairs:
        scales = {part: _alpha(file, pair, default=alpha) / pair.rank for part, pair in delta.pairs.items()}
        _check_scales(file, module, scales.values())
        scale = next(iter(scales.values()))
        ups = {part: _read(file, pair.up) * (scales[part] / scale) for part, pair in delta.pairs.items()}
        down = torch.cat([_read(file, pair.down) for pair in delta.pairs.values()])
        up = _block_diagonal(ups)
    bias = None if delta.diff_bias is None else _read(file, delta.diff_bias)
    order = row_order(module, config, layout=ROWS_OF.get(delta.dialect, "comfyui"))
    if order is not None:
        up, bias = (None if tensor is None else tensor[order] for tensor in (up, bias))
    return Branch(down=down, up=up, bias=bias, scale=scale)


def _check_scales(file: OpenCheckpoint, module: str, scales: Iterable[float]) -> None:
    """Raise LoraFileError where a factor, at any strength a job may name, leaves float32."""
    span = torch.finfo(torch.float32)
    for scale in scales:
        if not span.tiny <= scale <= span.max / limits.LORA_STRENGTH_MAX:
            raise LoraFileError(
                file.path,
                f"{module} has a factor alpha / rank of {scale:.3g}, which float32 cannot hold;"
                " fetch it again",
            )


def _check_finite(file: OpenCheckpoint, module: str, branch: Branch) -> None:
    for tensor in branch.buffers():
        if not tensor.isfinite().all():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise LoraFileError(file.path, f"{module} becomes infinite in {kind}; fetch it again")


def _block_diagonal(ups: Mapping[str, Tensor]) -> Tensor:
    """Return [O, r of all parts]; a part that is not there leaves its rows zero."""
    if "" in ups:
        return ups[""]
    rows = next(iter(ups.values())).shape[0]
    fused = torch.zeros(len(PARTS) * rows, sum(up.shape[1] for up in ups.values()))
    column = 0
    for part, up in ups.items():
        row = PARTS.index(part) * rows
        fused[row : row + rows, column : column + up.shape[1]] = up
        column += up.shape[1]
    return fused


def _alpha(file: OpenCheckpoint, pair: Pair, *, default: float | None) -> float:
    if pair.alpha is None:
        return pair.rank if default is None else default
    value = _read(file, pair.alpha).item()
    try:
        return checked_alpha(value)
    except ValueError:
        raise LoraFileError(file.path, f"{pair.alpha} is {value}, no positive number") from None


def _read(file: OpenCheckpoint, name: str) -> Tensor:
    """Return one tensor, float32. Raises LoraFileError for values that are not finite."""
    tensor = read_tensor(file, name).float()
    if not tensor.isfinite().all():
        raise LoraFileError(file.path, f"{name} holds values that are not finite; fetch the file again")
    return tensor
