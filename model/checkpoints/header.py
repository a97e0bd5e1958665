"""Safetensors files: open one, check its header before anything believes it, read from the same descriptor.

Lengths, offsets and dtypes must account for every byte of the file. Container rules:
https://github.com/huggingface/safetensors (format). Knows no architecture and imports no torch.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

from model.checkpoints.foreign import SNIFFED_BYTES, foreign_kind
from model.checkpoints.header_text import HeaderTextError, TensorEntry, parse_header_text, quoted
from model.errors import CheckpointFileError

HEADER_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest known H3 header is 1 MiB."""
_OPEN_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Not blocking: a pipe that takes the file's place must not hang whoever opens it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A checked header."""

    path: Path
    tensors: Mapping[str, TensorEntry]
    """In the header's order."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    sha256: str
    """Header identity: SHA-256 over the 8 length bytes and the JSON text."""
    size_bytes: int
    """Of the whole file."""
    payload_offset: int
    """Where offset 0 of the tensors lies in the file."""
    trailing_bytes: int
    """Behind the last tensor; a published H3 file has 65 of them, which belong to no tensor."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.tensors.items()}


class OpenCheckpoint:
    """One open file with its checked header; a context manager.

    All reads go through one descriptor, so what was checked is what is read, whatever happens to the name.
    """

    def __init__(self, path: Path, *, strict: bool = False, known: Header | None = None) -> None:
        """Open and check; `strict` also refuses links and trailing bytes.

        A file that still has its `known` header is not parsed again; one that has another by now is refused.
        Raises CheckpointFileError.
        """
        self.path = path
        self._file = FileIO(_open_regular(path, strict=strict))
        try:
            self.header = self._check(strict=strict) if known is None else self._check_same(known)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def fileno(self) -> int:
        return self._file.fileno()

    def read_tensor(self, name: str) -> bytes:
        """Return the whole content of one tensor. Raises CheckpointFileError."""
        entry = self.header.tensors[name]
        return self.read(self.header.payload_offset + entry.begin, entry.end - entry.begin)

    def read(self, offset: int, count: int) -> bytes:
        """Return exactly `count` bytes from byte `offset` of the file. Raises CheckpointFileError."""
        data = bytearray(count)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill `target` (bytes, contiguous) from byte `offset` of the file. Raises CheckpointFileError."""
        filled = 0
        try:
            self._file.seek(offset)
            while filled < len(target):
                count = self._file.readinto(target[filled:])
                if not count:
                    raise CheckpointFileError(self.path, "ended while it was read", offset=offset + filled)
                filled += count
        except OSError as error:
            raise CheckpointFileError(
                self.path, f"cannot be read: {error.strerror}", offset=offset + filled
            ) from None

    def _check(self, *, strict: bool) -> Header:
        path, size = self.path, os.fstat(self.fileno()).st_size
        start = self.read(0, min(size, SNIFFED_BYTES))
        length = _header_length(path, start, size_bytes=size)
        text = self.read(8, length)
        try:
            tensors, metadata = parse_header_text(text)
        except HeaderTextError as error:
            raise CheckpointFileError(path, str(error), offset=8 + error.position) from None
        trailing = _check_tiling(path, tensors, payload_offset=8 + length, size_bytes=size)
        if trailing and strict:
            raise CheckpointFileError(
                path, f"has {trailing:,} bytes behind its last tensor", offset=size - trailing
            )
        return Header(
            path=path,
            tensors=tensors,
            metadata=metadata,
            sha256=hashlib.sha256(start[:8] + text).hexdigest(),
            size_bytes=size,
            payload_offset=8 + length,
            trailing_bytes=trailing,
        )

    def _check_same(self, known: Header) -> Header:
        unchanged = os.fstat(self.fileno()).st_size == known.size_bytes
        if not unchanged or hashlib.sha256(self.read(0, known.payload_offset)).hexdigest() != known.sha256:
            raise CheckpointFileError(self.path, "has changed since it was checked; start again")
        return known


def read_header(path: Path, *, strict: bool = False) -> Header:
    """Read and check the header of a safetensors file.

    Raises CheckpointFileError with what was expected and found; never allocates more than the header's cap
    times a small factor.
    """
    with OpenCheckpoint(path, strict=strict) as file:
        return file.header


def _open_regular(path: Path, *, strict: bool) -> int:
    try:
        if strict and path.is_symlink():
            raise CheckpointFileError(path, "is a link")
        _require_regular(path, path.stat().st_mode)  # before opening: to open a device can do something
        descriptor = os.open(path, _OPEN_FLAGS)
    except FileNotFoundError:
        dangling = path.is_symlink()
        reason = f"is a link to {path.readlink()}, which is not there" if dangling else "does not exist"
        raise CheckpointFileError(path, reason) from None
    except OSError as error:
        raise CheckpointFileError(path, f"cannot be opened: {error.strerror}") from None
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
    except CheckpointFileError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise CheckpointFileError(path, "is a folder; name the file in it")
    if not stat.S_ISREG(mode):
        raise CheckpointFileError(path, "is no regular file but a pipe, socket or device")


def _header_length(path: Path, start: bytes, *, size_bytes: int) -> int:
    """Return how many bytes the JSON text has, which lie in the file and may be a header."""

    def refuse(reason: str, offset: int) -> CheckpointFileError:
        kind = foreign_kind(start)
        if kind is not None:
            reason, offset = f"is {kind}", 0
        return CheckpointFileError(path, reason, offset=offset)

    if size_bytes < 8:
        raise refuse(f"too short to be a safetensors file: {size_bytes} bytes", size_bytes)
    length = int.from_bytes(start[:8], "little")
    if length < 2:
        raise refuse(f"declares a header of {length} bytes; the shortest has 2", 0)
    if length > size_bytes - 8:
        raise refuse(
            f"truncated or foreign: it declares a header of {length:,} bytes and has {size_bytes - 8:,}", 0
        )
    if length > HEADER_BYTES_MAX:
        raise refuse(f"declares a header of {length:,} bytes; at most {HEADER_BYTES_MAX:,} are read", 0)
    if start[8:9] != b"{":
        raise refuse("its header does not start with '{'; not a safetensors file", 8)
    return length


def _check_tiling(
    path: Path, tensors: Mapping[str, TensorEntry], *, payload_offset: int, size_bytes: int
) -> int:
    """Check that the tensors lie one behind the other from offset 0 on; return how many bytes follow them."""
    ordered = sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end))
    payload_bytes = size_bytes - payload_offset
    end = max((entry.end for _, entry in ordered), default=0)
    if end > payload_bytes:
        raise CheckpointFileError(
            path,
            f"truncated: {end - payload_bytes:,} bytes of tensors are missing",
            offset=size_bytes,
        )
    if ordered and ordered[0][1].begin != 0:
        raise CheckpointFileError(
            path,
            f"gap of {ordered[0][1].begin:,} bytes before the first tensor, {quoted(ordered[0][0])}",
            offset=payload_offset,
        )
    for (left_name, left), (right_name, right) in pairwise(ordered):
        if left.end != right.begin:
            kind = "gap" if left.end < right.begin else "overlap"
            raise CheckpointFileError(
                path,
                f"{kind} of {abs(right.begin - left.end):,} bytes between the tensors {quoted(left_name)} and"
                f" {quoted(right_name)}",
                offset=payload_offset + min(left.end, right.begin),
            )
    return payload_bytes - end
