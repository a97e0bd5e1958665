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
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Self

import torch
from torch import Tensor

from model.checkpoints.header import OpenCheckpoint
from model.checkpoints.header_text import TensorEntry
from model.errors import CheckpointFileError

LANES: Final = 8
CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Of one read and of one buffer."""
ALIGNMENT: Final = 256
"""Of each tensor in a block, in bytes: what CUDA gives an allocation of its own."""
_GIVEN_SECONDS: Final = 200e-6


@dataclass(slots=True)
class _Chunk:
    """A contiguous part of the file, and which bytes of it go where."""

    begin: int
    """Byte offset in the file."""
    size: int = 0
    pieces: list[tuple[int, Tensor]] = field(default_factory=list)
    """Offset in the chunk, and the bytes that it fills."""


class Reading:
    """Tensors whose bytes are on their way: hand them around at once, look at them after `wait`.

    They lie in one block of device memory, which costs one allocation instead of a thousand and stays while
    any of them does; those named in `apart`, which somebody will cast and drop, have memory of their own.
    Use it as a context, which ends the copying whatever happens; the file stays open that long.
    """

    def __init__(
        self,
        file: OpenCheckpoint,
        entries: Mapping[str, TensorEntry],
        *,
        device: torch.device,
        apart: Collection[str] = (),
    ) -> None:
        self.data = _allocate(entries, device=device, apart=apart)
        """Name to uint8 [end - begin] on `device`."""
        chunks = _chunks(file, entries, dict(self.data))  # callers take tensors out meanwhile
        self._lanes: list[Future[None]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._stopped = False
        if device.type == "cuda":
            self._copy_in_lanes(file, chunks, device=device)
        else:
            for chunk in chunks:
                for offset, target in chunk.pieces:
                    _read_into(file, target.numpy().data, chunk.begin + offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped = True
        if self._threads is not None:
            self._threads.shutdown()

    def give_way(self) -> None:
        """Let the copying threads have the interpreter; from a busy one Python takes it after 5 ms only."""
        if self._lanes:
            time.sleep(_GIVEN_SECONDS)

    def wait(self) -> None:
        """Return when every byte is there. Raises CheckpointFileError: it ends early or cannot be read."""
        for lane in self._lanes:
            lane.result()

    def _copy_in_lanes(self, file: OpenCheckpoint, chunks: Iterator[_Chunk], *, device: torch.device) -> None:
        lock, begun = threading.Lock(), torch.cuda.Event()
        begun.record(torch.cuda.current_stream(device))  # what used this memory before is over by then

        def take() -> _Chunk | None:
            with lock:
                return None if self._stopped else next(chunks, None)

        self._threads = ThreadPoolExecutor(LANES, thread_name_prefix="load")
        self._lanes = [
            self._threads.submit(_run_lane, file, take, after=begun, device=device) for _ in range(LANES)
        ]


def read_bytes(
    file: OpenCheckpoint, entries: Mapping[str, TensorEntry], *, device: torch.device
) -> dict[str, Tensor]:
    """Return each entry's bytes as a uint8 tensor [end - begin] on `device`, all in one block of memory.

    Raises CheckpointFileError when the file ends early or cannot be read.
    """
    with Reading(file, entries, device=device) as reading:
        reading.wait()
    return reading.data


def drop_page_cache(file: OpenCheckpoint) -> None:
    """Let the system forget the file's pages; on unified memory they are taken from the GPU's share."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _allocate(
    entries: Mapping[str, TensorEntry], *, device: torch.device, apart: Collection[str]
) -> dict[str, Tensor]:
    sizes = {name: entry.end - entry.begin for name, entry in entries.items()}
    padded = [-(-size // ALIGNMENT) * ALIGNMENT for name, size in sizes.items() if name not in apart]
    parts = iter(torch.empty(sum(padded), dtype=torch.uint8, device=device).split(padded))
    made = {}
    for name, size in sizes.items():
        if name in apart:
            made[name] = torch.empty(size, dtype=torch.uint8, device=device)
        else:
            part = next(parts)
            made[name] = part if len(part) == size else part[:size]
    return made


def _chunks(
    file: OpenCheckpoint, entries: Mapping[str, TensorEntry], data: Mapping[str, Tensor]
) -> Iterator[_Chunk]:
    """Cut what is wanted into contiguous parts, in the order of the file; small tensors share one."""
    chunk: _Chunk | None = None
    for name, entry in sorted(entries.items(), key=lambda item: item[1].begin):
        size, done, target = entry.end - entry.begin, 0, data[name]
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
