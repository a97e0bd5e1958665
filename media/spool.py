"""A clip's frames on disk instead of in memory: written once, read in pieces as often as wanted.

The file has no name from the moment it exists, so no end of the process leaves one behind. It lies in the
folder for temporary files (`TMPDIR`): 1.1 GB for 15 s at 1344 x 768.

Shapes: F frames of height H and width W.
"""

import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PIECE_FRAMES = 17
"""Of one piece; what the video VAE encodes at a time."""


class SpooledFrames:
    """Uint8 RGB frames [F, H, W, 3]; reading is safe from several threads. Gone with its last reference."""

    def __init__(self, *, height: int, width: int) -> None:
        handle, name = tempfile.mkstemp(prefix="h3-clip-")
        Path(name).unlink()
        self._handle = handle
        self._close = weakref.finalize(self, os.close, handle)
        self.height, self.width, self.num_frames = height, width, 0

    def __len__(self) -> int:
        return self.num_frames

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        return self.pieces()

    @property
    def _frame_bytes(self) -> int:
        return self.height * self.width * 3

    def append(self, frame: NDArray[np.uint8], *, times: int = 1) -> None:
        """Write a frame [H, W, 3] behind the others."""
        assert frame.shape == (self.height, self.width, 3)
        data = np.ascontiguousarray(frame).data.cast("B")
        for _ in range(times):
            written = 0
            while written < len(data):
                at = self.num_frames * self._frame_bytes + written
                written += os.pwrite(self._handle, data[written:], at)
            self.num_frames += 1

    def shorten(self, num_frames: int) -> None:
        """Forget the frames from here on."""
        self.num_frames = min(self.num_frames, num_frames)

    def pieces(self, stop: int | None = None, *, size: int = PIECE_FRAMES) -> Iterator[NDArray[np.uint8]]:
        """Yield frames 0 to `stop` in arrays [at most `size`, H, W, 3]."""
        end = self.num_frames if stop is None else min(stop, self.num_frames)
        for start in range(0, end, size):
            yield self.take(range(start, min(start + size, end)))

    def take(self, indices: Sequence[int]) -> NDArray[np.uint8]:
        """Return the frames at these indices [len(indices), H, W, 3]."""
        out = np.empty((len(indices), self.height, self.width, 3), np.uint8)
        for frame, index in zip(out, indices, strict=True):
            if not 0 <= index < self.num_frames:
                raise IndexError(f"frame {index} of {self.num_frames}")
            self._read(frame.data.cast("B"), index * self._frame_bytes)
        return out

    def close(self) -> None:
        """Give the disk back now."""
        self._close()

    def _read(self, into: memoryview, at: int) -> None:
        done = 0
        while done < len(into):
            count = os.preadv(self._handle, [into[done:]], at + done)
            assert count  # the file has no other name, so nobody shortens it
            done += count
