"""Bytes of a checkpoint file onto a device, as fast as the bus takes them.

On CUDA several lanes, each a thread with two pinned buffers and a stream of its own, read contiguous parts
of the file and copy them from there: one thread alone reads the page cache at a fraction of the bus's rate,
and copies from pageable memory are slower still. Plain reads, no mmap: on unified memory mapped pages were
reported to copy 13 times slower. Host memory beside the page cache stays at the lanes' buffers, 128 MiB.

Knows bytes only: no dtypes, no names' meaning.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from model.checkpoints.header import CheckpointFile
from model.checkpoints.header_text import TensorEntry
from model.errors import CheckpointFileError

LANES: Final = 8
CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Of one read and of one buffer."""


@dataclass(slots=True)
class _Chunk:
    """A contiguous part of the file, and which bytes of it go where."""

    begin: int
    """Byte offset in the file."""
    size: int = 0
    pieces: list[tuple[int, Tensor]] = field(default_factory=list)
    """Offset in the chunk, and the bytes that it fills."""


def read_bytes(
    file: CheckpointFile, entries: Mapping[str, TensorEntry], *, device: torch.device
) -> dict[str, Tensor]:
    """Return each entry's bytes as a uint8 tensor [end - begin] of its own on `device`.

    Raises CheckpointFileError when the file ends early or cannot be read.
    """
    found = {
        name: torch.empty(entry.end - entry.begin, dtype=torch.uint8, device=device)
        for name, entry in entries.items()
    }
    chunks = list(_chunks(entries, found, payload_offset=file.header.payload_offset))
    if device.type == "cuda":
        _copy_in_lanes(file, chunks, device=device)
    else:
        for chunk in chunks:
            for offset, target in chunk.pieces:
                _read_into(file, target.numpy().data, chunk.begin + offset)
    return found


def drop_page_cache(file: CheckpointFile) -> None:
    """Let the system forget the file's pages; on unified memory they are taken from the GPU's share."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _chunks(
    entries: Mapping[str, TensorEntry], targets: Mapping[str, Tensor], *, payload_offset: int
) -> Iterator[_Chunk]:
    """Cut what is wanted into contiguous parts, in the order of the file; small tensors share one."""
    chunk: _Chunk | None = None
    for name, entry in sorted(entries.items(), key=lambda item: item[1].begin):
        position, target = payload_offset + entry.begin, targets[name]
        while len(target):
            if chunk is None or position != chunk.begin + chunk.size or chunk.size == CHUNK_BYTES:
                if chunk is not None:
                    yield chunk
                chunk = _Chunk(position)
            part = target[: CHUNK_BYTES - chunk.size]
            chunk.pieces.append((chunk.size, part))
            chunk.size += len(part)
            position, target = position + len(part), target[len(part) :]
    if chunk is not None:
        yield chunk


def _copy_in_lanes(file: CheckpointFile, chunks: list[_Chunk], *, device: torch.device) -> None:
    allocated = torch.cuda.Event()
    allocated.record(torch.cuda.current_stream(device))  # what used this memory before is over by then
    lanes = min(LANES, len(chunks))
    with ThreadPoolExecutor(lanes, thread_name_prefix="load") as threads:
        runs = [
            threads.submit(_copy_chunks, file, chunks[lane::lanes], after=allocated, device=device)
            for lane in range(lanes)
        ]
        for run in runs:
            run.result()


def _copy_chunks(
    file: CheckpointFile, chunks: list[_Chunk], *, after: torch.cuda.Event, device: torch.device
) -> None:
    """Run one lane; its copies have ended when it returns."""
    stream = torch.cuda.Stream(device)
    stream.wait_event(after)
    buffers = [torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event(), torch.cuda.Event()]
    with torch.cuda.device(device), torch.cuda.stream(stream):
        for number, chunk in enumerate(chunks):
            buffer, event = buffers[number % 2], copied[number % 2]
            event.synchronize()  # of the copy out of this buffer, two chunks ago
            _read_into(file, buffer.numpy().data[: chunk.size], chunk.begin)
            for offset, target in chunk.pieces:
                target.copy_(buffer[offset : offset + len(target)], non_blocking=True)
            event.record(stream)
    stream.synchronize()


def _read_into(file: CheckpointFile, target: memoryview, offset: int) -> None:
    """Fill `target` from byte `offset`; the lanes share the descriptor, so its position is left alone."""
    filled = 0
    while filled < len(target):
        try:
            count = os.preadv(file.fileno(), [target[filled:]], offset + filled)
        except OSError as error:
            raise CheckpointFileError(
                file.path, f"cannot be read: {error.strerror}", offset=offset + filled
            ) from None
        if not count:
            raise CheckpointFileError(file.path, "ended while it was read", offset=offset + filled)
        filled += count
