"""Opening what libav reads, on our terms: one named demuxer, local files only, bounded streams and frames.

libav's own probing would try playlists and lists of files, and open what they name. Here the demuxer is the
one that the file's first bytes ask for, and no protocol but `file` is allowed. Knows no limits of a job.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.stream import VideoStream

from media.boxes import check_boxes
from media.errors import ReferenceUnreadableError
from media.sniff import AVIF, MP4, FileForm
from media.tags import check_tags
from queue_schemas import limits

_DEMUXERS: Final = {"AVIF": "mov", "PNG": "png_pipe"}
DECODER_THREADS: Final = 4
"""Each holds frames of its own."""


@contextmanager
def open_streams(path: Path, form: FileForm) -> Iterator[InputContainer]:
    """Open a file whose form is known. Raises ReferenceUnreadableError, also for what libav says later."""
    if form in (MP4, AVIF):
        display_matrices(path)
    with path.open("rb") as file:
        check_tags(file, form)
    demuxer = _DEMUXERS.get(form.reader, form.reader)
    options = {
        "protocol_whitelist": "file",
        "format_whitelist": demuxer,
        "max_streams": str(limits.MEDIA_STREAMS),
        "max_pixels": str(limits.CLIP_PIXELS),
    }
    try:
        # An absolute path, since libav takes `a:b.mp4` for an address.
        with _opened(path, demuxer, options) as container:
            yield container
    except av.ExitError as error:  # a header that libav left early is told of at the first packet
        raise _too_slow() from error
    except (av.FFmpegError, ValueError, IndexError) as error:
        # IndexError: PyAV cannot follow a track that shows up midway, as in a damaged transport stream.
        raise ReferenceUnreadableError(
            f"{form.name} that cannot be read: {_said(error)}; write it anew, or give another file"
        ) from error


def _opened(path: Path, demuxer: str, options: dict[str, str]) -> InputContainer:
    """Open a file, in bounded time. Some demuxers hide from their error that it was time."""
    start = time.monotonic()
    most = limits.MEDIA_OPENING_SECONDS
    try:
        # An absolute path, since libav takes `a:b.mp4` for an address.
        return av.open(
            str(path.absolute()),
            format=demuxer,
            options=options,
            metadata_errors="replace",
            timeout=(most, None),
        )
    except av.FFmpegError as error:
        if time.monotonic() - start < most:
            raise
        raise _too_slow() from error


def _too_slow() -> ReferenceUnreadableError:
    return ReferenceUnreadableError(
        f"its header is not read after {limits.MEDIA_OPENING_SECONDS:g} s, as where tags are very many;"
        " write it anew without them"
    )


def display_matrices(path: Path) -> dict[int, list[int]]:
    """Return the matrices of an mp4's tracks by id, having checked what its index claims."""
    with path.open("rb") as file:
        return check_boxes(file, size_bytes=path.stat().st_size)


def film_of(container: InputContainer) -> VideoStream | None:
    """Return the track of pictures that is used: the first that is no cover."""
    return next((stream for stream in container.streams.video if not is_cover(stream)), None)


def sound_of(container: InputContainer) -> AudioStream | None:
    """Return the track of sound that is used: the one marked as default, else the first."""
    tracks = container.streams.audio
    marked = (stream for stream in tracks if stream.disposition & stream.disposition.default)
    return next(marked, None) or next(iter(tracks), None)


def codec_name(stream: VideoStream | AudioStream) -> str:
    context = stream.codec_context
    return context.codec.canonical_name if context is not None else "unknown codec"


def is_cover(stream: VideoStream) -> bool:
    return bool(stream.disposition & stream.disposition.attached_pic)


def _said(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
