"""Bytes of a checkpoint file onto a device, as fast as the bus takes them.

On CUDA several lanes, each a thread with two pinned buffers and a stream of its own, read contiguous parts
of the file and copy them from there: one thread alone reads the page cache at a fraction of the bus's rate,
and copies from pageable memory are slower still. Plain reads, no mmap: on unified memory mapped pages were
reported to copy 13 times slower. Host memory beside the page cache stays at the lanes' buffers, 128 MiB.

Knows bytes only: no dtypes, no names' meaning.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from model.checkpoints.header import OpenCheckpoint
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
    file: OpenCheckpoint, entries: Mapping[str, TensorEntry], *, device: torch.device
) -> dict[str, Tensor]:
    """Return each entry's bytes as a uint8 tensor [end - begin] of its own on `device`.

    Raises CheckpointFileError when the file ends early or cannot be read.
    """
    found: dict[str, Tensor] = {}
    chunks = _chunks(file, entries, found, device=device)
    if device.type == "cuda":
        _copy_in_lanes(file, chunks, device=device)
    else:
        for chunk in chunks:
            for offset, target in chunk.pieces:
                _read_into(file, target.numpy().data, chunk.begin + offset)
    return {name: found[name] for name in entries}


def drop_page_cache(file: OpenCheckpoint) -> None:
    """Let the system forget the file's pages; on unified memory they are taken from the GPU's share."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _chunks(
    file: OpenCheckpoint,
    entries: Mapping[str, TensorEntry],
    found: dict[str, Tensor],
    *,
    device: torch.device,
) -> Iterator[_Chunk]:
    """Cut what is wanted into contiguous parts, in the order of the file; small tensors share one.

    Each tensor is added to `found`, not yet filled, when its first part is about to be handed out: memory is
    allocated while others copy.
    """
    chunk: _Chunk | None = None
    for name, entry in sorted(entries.items(), key=lambda item: item[1].begin):
        size, done = entry.end - entry.begin, 0
        target = found[name] = torch.empty(size, dtype=torch.uint8, device=device)
        begin = file.header.payload_offset + entry.begin
        while done < size:
            if chunk is None or begin + done != chunk.begin + chunk.size or chunk.size == CHUNK_BYTES:
                if chunk is not None:
                    yield chunk
                chunk = _Chunk(begin + done)
            part = min(size - done, CHUNK_BYTES - chunk.size)
            chunk.pieces.append((chunk.size, target[done : done + part]))
            chunk.size, done = chunk.size + part, done + part
    if chunk is not None:
        yield chunk


def _copy_in_lanes(file: OpenCheckpoint, chunks: Iterator[_Chunk], *, device: torch.device) -> None:
    own_stream, lock = torch.cuda.current_stream(device), threading.Lock()
    begun = torch.cuda.Event()
    begun.record(own_stream)  # what used this memory before is over by then

    def take() -> _Chunk | None:
        with lock, torch.cuda.stream(own_stream):  # whose memory the tensors are
            return next(chunks, None)

    with ThreadPoolExecutor(LANES, thread_name_prefix="load") as threads:
        runs = [threads.submit(_run_lane, file, take, after=begun, device=device) for _ in range(LANES)]
        for run in runs:
            run.result()


def _run_lane(
    file: OpenCheckpoint,
    take: Callable[[], _Chunk | None],
    *,
    after: torch.cuda.Event,
    device: torch.device,
) -> None:
    """Copy chunks until there are none; the copies have ended when it returns."""
    stream = torch.cuda.Stream(device)
    stream.wait_event(after)
    buffers = [torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event(), torch.cuda.Event()]
    with torch.cuda.device(device), torch.cuda.stream(stream):
        for buffer, event in itertools.cycle(zip(buffers, copied, strict=True)):
            chunk = take()
            if chunk is None:
                break
            event.synchronize()  # of the copy out of this buffer, two chunks ago
            _read_into(file, buffer.numpy().data[: chunk.size], chunk.begin)
            for offset, target in chunk.pieces:
                target.copy_(buffer[offset : offset + target.shape[0]], non_blocking=True)
            event.record(stream)
    stream.synchronize()


def _read_into(file: OpenCheckpoint, target: memoryview, offset: int) -> None:
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
