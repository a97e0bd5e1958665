"""Safetensors headers: read, check and identify one without touching the payload.

A header is checked before anything believes it: lengths, offsets and dtypes must account for every byte of
the file. Container rules: https://github.com/huggingface/safetensors (format). Knows no architecture and
imports no torch.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from model.errors import CheckpointFileError

HEADER_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest known H3 header is 1 MiB."""
ELEMENT_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "F64": 64, "I64": 64, "U64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
FOREIGN_MAGIC: Final[tuple[tuple[bytes, str], ...]] = (
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch .pt or .ckpt file"),
    (b"\x80\x02", "a pickle, which this project never opens"),
    (b"\x80\x04", "a pickle, which this project never opens"),
    (b"\x80\x05", "a pickle, which this project never opens"),
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"version ", "a Git LFS pointer; fetch the real file with git lfs pull"),
    (b"<!DO", "a saved web page, not the file it links to"),
    (b"<htm", "a saved web page, not the file it links to"),
)


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as the header declares it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Byte offset in the payload."""
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A checked header."""

    path: Path
    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str] = field(default_factory=dict)
    sha256: str
    """Header identity: SHA-256 over the 8 length bytes and the JSON text."""
    size_bytes: int
    """Of the whole file."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.tensors.items()}


def read_header(path: Path) -> Header:
    """Read and check the header of a safetensors file.

    Raises CheckpointFileError with what was expected and found; never allocates more than the header's cap.
    """
    if not path.is_file():
        raise CheckpointFileError(path, "is no regular file")
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            _refuse_foreign(path, prefix)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length < 2:
                raise CheckpointFileError(path, f"too short to be a safetensors file ({size} bytes)")
            if length > min(HEADER_BYTES_MAX, size - 8):
                raise CheckpointFileError(
                    path, f"truncated or foreign: it declares a header of {length:,} bytes and has {size:,}"
                )
            text = file.read(length)
    except OSError as error:
        raise CheckpointFileError(path, f"cannot be read: {error.strerror}") from None
    document = _parse(path, text)
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointFileError(path, "its __metadata__ does not map strings to strings")
    tensors = {name: _entry(path, name, value) for name, value in document.items()}
    _check_tiling(path, tensors, payload_bytes=size - 8 - length)
    return Header(
        path=path,
        tensors=tensors,
        metadata=metadata,
        sha256=hashlib.sha256(prefix + text).hexdigest(),
        size_bytes=size,
    )


def _refuse_foreign(path: Path, prefix: bytes) -> None:
    for magic, what in FOREIGN_MAGIC:
        if prefix.startswith(magic):
            raise CheckpointFileError(path, f"is {what}")


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise CheckpointFileError(path, "its header does not start with '{'; not a safetensors file")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("the same key stands twice")
        return found

    try:
        document = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointFileError(path, f"its header is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise CheckpointFileError(path, "its header is no JSON object")
    return document


def _entry(path: Path, name: str, value: Any) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointFileError(path, f"tensor {name!r} lacks dtype, shape or data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if dtype not in ELEMENT_BITS:
        raise CheckpointFileError(path, f"tensor {name!r} has unknown dtype {dtype!r}")
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if len(numbers) > 10 or any(type(item) is not int or item < 0 for item in numbers) or len(offsets) != 2:
        raise CheckpointFileError(path, f"tensor {name!r} has a malformed shape or offsets")
    begin, end = offsets
    bits = math.prod(shape) * ELEMENT_BITS[dtype]
    if end - begin != (bits + 7) // 8:
        raise CheckpointFileError(
            path,
            f"tensor {name!r}: {dtype} {shape} needs {(bits + 7) // 8} bytes, offsets give {end - begin}",
        )
    return TensorEntry(dtype, tuple(shape), begin, end)


def _check_tiling(path: Path, tensors: Mapping[str, TensorEntry], *, payload_bytes: int) -> None:
    """Every payload byte belongs to exactly one tensor."""
    ordered = sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end))
    last = ordered[-1][1].end if ordered else 0
    if last > payload_bytes:
        raise CheckpointFileError(path, f"truncated: {last - payload_bytes:,} bytes of tensors are missing")
    if ordered and ordered[0][1].begin != 0:
        raise CheckpointFileError(path, f"gap before tensor {ordered[0][0]!r}")
    for (left_name, left), (right_name, right) in pairwise(ordered):
        if left.end != right.begin:
            raise CheckpointFileError(
                path, f"gap or overlap between tensors {left_name!r} and {right_name!r}"
            )
    # Bytes after the last tensor are tolerated: a published H3 file has 65 of them.
