"""Reading the tensors of one checkpoint file, and refusing values that no trained tensor has."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from model.checkpoints.header import CheckpointFile
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
_FLOAT8_NAN: Final = 0x7F


def read_tensors(file: CheckpointFile, names: Iterable[str], *, device: torch.device) -> dict[str, Tensor]:
    """Return tensors as they are stored, each in memory of its own on `device`.

    Read here, since the reference library refuses trailing bytes. Raises CheckpointFileError.
    """
    entries = {name: file.header.tensors[name] for name in names}
    data = read_bytes(file, entries, device=device)
    return {
        name: data.pop(name).view(DTYPES[entry.dtype]).view(entry.shape) for name, entry in entries.items()
    }


def read_tensor(file: CheckpointFile, name: str) -> Tensor:
    """Return one tensor as it is stored, in host memory. Raises CheckpointFileError."""
    return read_tensors(file, [name], device=torch.device("cpu"))[name]


class ValueCheck:
    """Finds NaN, infinities and matrices of zeros, which broken downloads hold, in the tensors of one file.

    One reduction for each where it lies, in the dtype that computes: a value too large for it is found
    too. They are looked at together at the end, because every look waits for the GPU.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._seen: dict[torch.dtype, list[tuple[str, torch.dtype, bool, tuple[Tensor, Tensor]]]] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        """Have a tensor looked at; it may be changed or freed afterwards."""
        # Of float8, which has no reductions, the sizes: NaN is the largest of them.
        values = tensor.view(torch.uint8) & 0x7F if tensor.dtype is torch.float8_e4m3fn else tensor
        low, high = values.aminmax()  # both NaN if any value is
        is_matrix = tensor.ndim > 1 and tensor.numel() >= ZEROS_MAX
        self._seen.setdefault(low.dtype, []).append((name, tensor.dtype, is_matrix, (low, high)))

    def refuse(self) -> None:
        """Raise CheckpointFileError for a tensor that nobody trained."""
        for seen in self._seen.values():
            extremes = torch.stack([each for *_, pair in seen for each in pair]).view(-1, 2).tolist()
            for (name, dtype, is_matrix, _), (low, high) in zip(seen, extremes, strict=True):
                is_nan = dtype is torch.float8_e4m3fn and high == _FLOAT8_NAN
                if is_nan or not (math.isfinite(low) and math.isfinite(high)):
                    reason = f"holds values that are not finite in {dtype}; fetch the file again"
                    raise CheckpointFileError(self._source, f"tensor {name!r} {reason}")
                if is_matrix and low == high == 0.0:
                    reason = "holds nothing but zeros; perhaps its download broke off: fetch it again"
                    raise CheckpointFileError(self._source, f"tensor {name!r} {reason}")


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
