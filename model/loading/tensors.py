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
        self._seen: list[tuple[str, torch.dtype, bool]] = []
        self._extremes: list[Tensor] = []

    def add(self, name: str, tensor: Tensor) -> None:
        """Have a tensor looked at; it may be changed or freed afterwards."""
        is_float8 = tensor.dtype is torch.float8_e4m3fn
        # Of float8, which has no reductions, the sizes: NaN is the largest of them.
        sizes = tensor.view(torch.uint8) & 0x7F if is_float8 else tensor
        self._seen.append((name, tensor.dtype, tensor.ndim > 1 and tensor.numel() >= ZEROS_MAX))
        self._extremes.append(torch.stack(sizes.aminmax()).double())  # both NaN if any value is

    def refuse(self) -> None:
        """Raise CheckpointFileError for the first tensor that nobody trained."""
        if not self._seen:
            return
        found = torch.stack(self._extremes).tolist()
        for (name, dtype, is_matrix), (low, high) in zip(self._seen, found, strict=True):
            if not (math.isfinite(low) and math.isfinite(high)) or (
                dtype is torch.float8_e4m3fn and high == _FLOAT8_NAN
            ):
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
