"""Parts of a file that were never written: an interrupted download, or a file of headers made for tests.

A hole reads as zeros, so a header tells nothing of it. File systems that keep no track of holes report none;
there a few blocks read across the payload show the commonest case.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from model.checkpoints.header import Header, OpenCheckpoint
from model.errors import CheckpointFileError

TENSOR_BYTES_MIN: Final = 64 * 1024
"""Smaller tensors may rightly be all zeros, such as biases."""
SAMPLES: Final = 16
SAMPLE_BYTES: Final = 4096
EXTENTS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundHoles:
    """What is not there."""

    bytes: int
    tensors: tuple[str, ...]
    """Of 64 KiB and more, wholly in a hole."""
    zero_samples: int
    """Of 16 blocks of the payload, if it has as many."""

    def __bool__(self) -> bool:
        return bool(self.tensors) or self.zero_samples > 1


def find_holes(file: OpenCheckpoint) -> FoundHoles:
    """Look for holes in the payload. Raises CheckpointFileError when the file cannot be read."""
    header = file.header
    holes = list(_holes(file.fileno(), header.payload_offset, header.size_bytes))
    starts = [low for low, _ in holes]
    tensors = []
    for name, entry in header.tensors.items():
        begin, end = header.payload_offset + entry.begin, header.payload_offset + entry.end
        index = bisect_right(starts, begin) - 1
        if end - begin >= TENSOR_BYTES_MIN and index >= 0 and end <= holes[index][1]:
            tensors.append(name)
    return FoundHoles(
        bytes=sum(high - low for low, high in holes),
        tensors=tuple(tensors),
        zero_samples=_zero_samples(file),
    )


def refuse_holes(header: Header) -> None:
    """Raise CheckpointFileError if a weight of the file was never written."""
    with OpenCheckpoint(header.path, known=header) as file:
        found = find_holes(file)
    if found:
        what = f"{len(found.tensors)} tensors ({', '.join(found.tensors[:3])}, ...) were never written"
        if not found.tensors:
            what = f"it holds nothing but zeros at {found.zero_samples} of {SAMPLES} places"
        raise CheckpointFileError(
            header.path,
            f"{what}: an interrupted download, or a header made for tests; fetch the file again",
        )


def _holes(descriptor: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the holes between two bytes of a file, as far as its file system knows any."""
    if not hasattr(os, "SEEK_HOLE"):
        return
    at = begin
    for _ in range(EXTENTS_MAX):
        try:
            hole = os.lseek(descriptor, at, os.SEEK_HOLE)
            if hole >= end:
                return
            try:
                data = os.lseek(descriptor, hole, os.SEEK_DATA)
            except OSError:  # no data any more
                data = end
        except OSError:  # this file system cannot tell
            return
        yield max(hole, begin), min(data, end)
        if data >= end:
            return
        at = data


def _zero_samples(file: OpenCheckpoint) -> int:
    """Count the blocks of nothing but zeros among 16 that lie evenly across the payload."""
    begin, end = file.header.payload_offset, file.header.size_bytes - file.header.trailing_bytes
    if end - begin < SAMPLES * SAMPLE_BYTES * 4:
        return 0
    step = (end - begin - SAMPLE_BYTES) // (SAMPLES - 1)
    return sum(not any(file.read(begin + step * index, SAMPLE_BYTES)) for index in range(SAMPLES))
