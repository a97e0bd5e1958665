"""Reading the tensors of one checkpoint file, and refusing values that no trained tensor has."""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from model.checkpoints.header import OpenCheckpoint
from model.checkpoints.header_text import TensorEntry
from model.errors import CheckpointFileError, CheckpointMismatchError
from model.loading.transfer import read_bytes

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "U8": torch.uint8,
}
ZEROS_MAX: Final = 4096
"""A matrix of as many zeros was never trained; a small one, such as the unused mask token, may be zero."""
CPU: Final = torch.device("cpu")
JOINED_BYTES: Final = 64 * 1024 * 1024
_FLOAT8_SIZE: Final = 0x7F
"""All bits but the sign, and in a value NaN."""


def view_stored(data: Tensor, entry: TensorEntry) -> Tensor:
    """Return a tensor's bytes, uint8 [end - begin], in its own dtype and shape."""
    return data.view(DTYPES[entry.dtype]).view(entry.shape)


def read_tensor(file: OpenCheckpoint, name: str, *, device: torch.device = CPU) -> Tensor:
    """Return one tensor as it is stored, in memory of its own.

    Read here, since the reference library refuses trailing bytes. Raises CheckpointFileError.
    """
    entry = file.header.tensors[name]
    return view_stored(read_bytes(file, {name: entry}, device=device)[name], entry)


class ValueCheck:
    """Finds NaN, infinities and matrices of zeros, which broken downloads hold, in the tensors of one file.

    Looked at where they lie, in the dtype that computes: a value too large for it is found too. All of one
    dtype share a few kernels and one wait for the GPU; only after a fault is each looked at by itself.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._waiting: dict[str, Tensor] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        """Have a tensor looked at by the next `refuse`; until then it is kept."""
        self._waiting[name] = tensor

    def refuse(self) -> None:
        """Raise CheckpointFileError for a tensor that nobody trained."""
        waiting, self._waiting = self._waiting, {}
        by_dtype: dict[torch.dtype, dict[str, Tensor]] = {}
        for name, tensor in waiting.items():
            # Float8 has no reductions: without the sign NaN is its largest byte. It has no infinity.
            values = tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor
            by_dtype.setdefault(tensor.dtype, {})[name] = values
        for dtype, tensors in by_dtype.items():
            if not _all_finite(tensors.values(), dtype):
                name = next(name for name, tensor in tensors.items() if not _all_finite([tensor], dtype))
                reason = f"holds values that are not finite in {dtype}; fetch the file again"
                raise CheckpointFileError(self._source, f"tensor {name!r} {reason}")
            zeros = _first_of_zeros(tensors, dtype)
            if zeros is not None:
                reason = "holds nothing but zeros; perhaps its download broke off: fetch it again"
                raise CheckpointFileError(self._source, f"tensor {zeros!r} {reason}")


def _all_finite(tensors: Collection[Tensor], dtype: torch.dtype) -> bool:
    if dtype is torch.float8_e4m3fn:
        largest = [(bytes_ & _FLOAT8_SIZE).max() for bytes_ in _joined(tensors)]
        return int(torch.stack(largest).max()) < _FLOAT8_SIZE
    return not dtype.is_floating_point or bool(get_total_norm(tensors, math.inf).isfinite())


def _first_of_zeros(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> str | None:
    """Return the first matrix of zeros; one with a value in its middle is looked at no further."""

    def filled(rows: Tensor) -> Tensor:
        return ((rows & _FLOAT8_SIZE if dtype is torch.float8_e4m3fn else rows) != 0).any(dim=-1)

    flat = {name: t.flatten() for name, t in tensors.items() if t.ndim > 1 and t.numel() >= ZEROS_MAX}
    if not flat:
        return None
    middles = [values.narrow(0, len(values) // 2, ZEROS_MAX // 2) for values in flat.values()]
    doubtful = itertools.compress(flat, (~filled(torch.stack(middles))).tolist())
    return next((name for name in doubtful if not filled(flat[name])), None)


def _joined(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield tensors flat, small ones joined: a kernel for each would take longer than what it does."""
    group: list[Tensor] = []
    size = 0
    for tensor in tensors:
        group.append(tensor.flatten())
        size += tensor.nbytes
        if size >= JOINED_BYTES:
            yield torch.cat(group) if len(group) > 1 else tensor
            group, size = [], 0
    if group:
        yield torch.cat(group)


def check_constants(tensors: Mapping[str, Tensor], constants: Mapping[str, Tensor], *, source: Path) -> None:
    """Refuse tensors that a file holds although they are always the same, where it holds other values.

    A hundredth is left for files whose every tensor was rounded to bf16. Raises CheckpointMismatchError.
    """
    wrong = [
        f"{name}: not the values that every H3 file has"
        for name, want in constants.items()
        if name in tensors and not torch.allclose(tensors[name].float().cpu(), want, rtol=0.01, atol=0.0)
    ]
    if wrong:
        raise CheckpointMismatchError(source, wrong=wrong)
