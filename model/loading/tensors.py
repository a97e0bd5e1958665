"""Reading the tensors of one checkpoint file, and refusing values that no trained tensor has."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from model.checkpoints.header import CheckpointFile, Header
from model.errors import CheckpointFileError, CheckpointMismatchError

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


@contextmanager
def open_unchanged(header: Header) -> Iterator[CheckpointFile]:
    """Open a file whose header was read before. Raises CheckpointFileError if it is another one by now."""
    with CheckpointFile(header.path) as file:
        if file.header.sha256 != header.sha256:
            raise CheckpointFileError(header.path, "has changed since it was checked; start again")
        yield file


def read_tensor(file: CheckpointFile, name: str) -> Tensor:
    """Return one tensor as it is stored. Read here, since the reference library refuses trailing bytes."""
    entry = file.header.tensors[name]
    data = torch.empty(entry.end - entry.begin, dtype=torch.uint8)
    file.read_into(memoryview(data.numpy().data), file.header.payload_offset + entry.begin)
    return data.view(DTYPES[entry.dtype]).view(entry.shape)


def refuse_values(tensor: Tensor, *, name: str, source: Path) -> None:
    """Raise CheckpointFileError for NaN, infinities, and a matrix of zeros: what broken downloads hold.

    One reduction where the tensor lies, in the dtype that computes: a value too large for it is found too.
    """
    low, high = _extremes(tensor)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise CheckpointFileError(
            source,
            f"tensor {name!r} holds values that are not finite in {tensor.dtype}; fetch the file again",
        )
    if low == high == 0.0 and tensor.ndim > 1 and tensor.numel() >= ZEROS_MAX:
        raise CheckpointFileError(
            source, f"tensor {name!r} holds nothing but zeros; perhaps its download broke off: fetch it again"
        )


def _extremes(tensor: Tensor) -> tuple[float, float]:
    """Return the least and the greatest value, both NaN if any is; of float8, which has neither, of sizes."""
    if tensor.dtype is torch.float8_e4m3fn:
        low, high = torch.stack((tensor.view(torch.uint8) & 0x7F).aminmax()).tolist()
        return (math.nan, math.nan) if high == 0x7F else (low, high)
    low, high = torch.stack(tensor.aminmax()).tolist()
    return low, high


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
