"""A clip's pictures: decoded once, put on 24 frames a second by their time stamps, sized frame by frame.

A few frames of the file's own size are held at a time; what is kept goes to disk (`media/spool.py`). Decoding
stops when the last wanted slot is filled.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final, Self

import av
import numpy as np
from av.container import InputContainer
from av.video.stream import VideoStream
from numpy.typing import NDArray

from media.errors import ReferenceUnreadableError
from media.frame_sizing import FrameSizing, Size
from media.sniff import FileForm
from media.spool import SpooledFrames
from media.streams import DECODER_THREADS, codec_name, film_of, open_streams
from media.timing import Slots
from queue_schemas.geometry import FPS

SIZING_THREADS: Final = 4
"""Each holds one frame of the file's own size, and one waits: 0.2 GB at 4K."""
_THREADED_PIXELS: Final = 4_096 * 2_304
"""Of a frame, up to which there are several threads; an 8K clip would need 1.7 GB with them."""
_SHORTFALL_FRAMES: Final = 2
"""At 24 a second, by which a whole file may hold less than its packets say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedClip:
    """What was kept of a clip's pictures."""

    frames: SpooledFrames
    origin: Fraction
    """Time of the first frame on the container's clock, in seconds."""
    changes: list[str]


def decode_clip(
    path: Path, form: FileForm, *, size_for: Callable[[int, int], Size], stop: int
) -> DecodedClip:
    """Decode the first `stop` frames at 24 a second, each of the size that `size_for` gives.

    `size_for` takes upright width and height in square pixels. Raises ReferenceUnreadableError, also where
    there are fewer frames than `stop`, which the packets had promised.
    """
    with open_streams(path, form) as container:
        stream = film_of(container)
        assert stream is not None  # its header was looked at
        try:
            return _decode(container, stream, size_for=size_for, stop=stop)
        except (av.FFmpegError, ValueError) as error:
            raise _broken(stream, str(getattr(error, "strerror", None) or error)) from error


def _decode(
    container: InputContainer, stream: VideoStream, *, size_for: Callable[[int, int], Size], stop: int
) -> DecodedClip:
    stream.codec_context.thread_type = "AUTO"
    stream.codec_context.thread_count = _threads(DECODER_THREADS, stream.width * stream.height)
    assert stream.time_base is not None
    slots = Slots(rate=stream.average_rate, tick=stream.time_base)
    frames = _frames(container, stream)
    first = next(frames, None)
    if first is None:
        raise _broken(stream, "nothing in it decodes")
    sizing = FrameSizing.of(first, aspect=stream.sample_aspect_ratio, size_for=size_for)
    spool = SpooledFrames(width=sizing.size[0], height=sizing.size[1])
    held, since = first, slots.place(_time(first))
    with _Writer(spool, sizing) as writer:
        for frame in frames:
            slot = min(slots.place(_time(frame)), stop)
            if slot > since:
                writer.add(held, times=slot - since)
                since = slot
            held = frame
            if since >= stop:
                break
        else:
            writer.add(held, times=max(0, min(slots.end(_duration(held)), stop) - since))
    if len(spool) < stop - _SHORTFALL_FRAMES:
        raise ReferenceUnreadableError(
            f"its pictures end after {len(spool) / FPS:.2f} s of {stop / FPS:.2f} s: damaged or cut off;"
            " give the whole file"
        )
    changes = sizing.changes
    rate = stream.average_rate
    if rate != FPS:
        changes.append(
            f"Brought from {float(rate):.5g} to {FPS} frames a second by time stamps."
            if rate
            else f"Brought to {FPS} frames a second by time stamps."
        )
    return DecodedClip(frames=spool, origin=slots.origin, changes=changes)


class _Writer:
    """Brings frames to their size on a few threads and spools them in order; a context manager."""

    def __init__(self, spool: SpooledFrames, sizing: FrameSizing) -> None:
        self._spool, self._sizing = spool, sizing
        self._most = _threads(SIZING_THREADS, sizing.coded[0] * sizing.coded[1])
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="clip")
        self._waiting: deque[tuple[Future[NDArray[np.uint8]], int]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with self._pool:
            while self._waiting and kind is None:
                self._write()

    def add(self, frame: av.VideoFrame, *, times: int) -> None:
        """Take a frame that fills so many slots."""
        if not times:
            return
        self._sizing.note(frame)
        self._waiting.append((self._pool.submit(self._sizing.picture, frame), times))
        if len(self._waiting) > self._most:
            self._write()

    def _write(self) -> None:
        picture, times = self._waiting.popleft()
        self._spool.append(picture.result(), times=times)


def _threads(most: int, pixels: int) -> int:
    return most if pixels <= _THREADED_PIXELS else 1


def _frames(container: InputContainer, stream: VideoStream) -> Iterator[av.VideoFrame]:
    for frame in container.decode(stream):
        assert isinstance(frame, av.VideoFrame)
        if frame.is_corrupt:
            raise _broken(stream, "a frame is damaged")
        yield frame


def _time(frame: av.VideoFrame) -> Fraction | None:
    return None if frame.pts is None or frame.time_base is None else frame.pts * frame.time_base


def _duration(frame: av.VideoFrame) -> Fraction | None:
    return frame.duration * frame.time_base if frame.duration and frame.time_base else None


def _broken(stream: VideoStream, reason: str) -> ReferenceUnreadableError:
    return ReferenceUnreadableError(
        f"its track of pictures ({codec_name(stream)}) is broken: {reason}; write it anew"
    )
