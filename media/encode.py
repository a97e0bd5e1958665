"""Finished frames and their sound into one mp4 that plays everywhere, or into nothing at all.

The film is written under a temporary name beside its target, read back, made durable, and only then named.
The same frames, sound and tags give the same bytes with the same libav. Knows no jobs and no storage.

Shapes: F frames of height H and width W; N = round(F × sample rate / fps) samples per channel.
"""

import errno
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from media.errors import FilmEncodeError, FilmInputError, FilmUnreadableError, FilmVerifyError, FilmWriteError
from media.probe import probe_with_tags
from media.tracks import AAC_RATES_HZ, AudioTrack, VideoTrack
from media.unfinished import unfinished_beside
from queue_schemas.benchmark import MediaSummary
from queue_schemas.geometry import AUDIO_CHANNELS, FPS

TAGS = ("title", "comment", "description", "synopsis", "artist", "copyright", "genre")
"""The tags that an mp4 gives back exactly as they were put in."""
_OF_FILES = frozenset(errno.errorcode) - {errno.EINVAL, errno.ENOMEM}
"""Numbers of libav's errors that tell of a disk and not of a codec, whose own numbers are no errno."""


def encode_mp4(
    path: Path,
    *,
    frames: Iterable[NDArray[np.uint8]],
    waveform: NDArray[np.float32],
    sample_rate_hz: int,
    fps: int = FPS,
    metadata: Mapping[str, str] | None = None,
) -> MediaSummary:
    """Write a film and return what it holds, as read back; an existing file is replaced in one step.

    `frames` are parts of the film in order, each RGB [F, H, W, 3], held one at a time; `waveform` is [2, N],
    left first, and plays clipped outside -1 to 1; `metadata` takes the names in `TAGS`.
    Raises FilmInputError, FilmEncodeError, FilmWriteError, FilmVerifyError, and whatever the iterable of
    parts raises.
    """
    tags = dict(metadata or {})
    _check_tags(tags)
    _check_waveform(waveform, sample_rate_hz=sample_rate_hz)

    temporary = unfinished_beside(path)
    try:
        written = _write(
            temporary,
            frames=_each_frame(frames),
            waveform=waveform,
            sample_rate_hz=sample_rate_hz,
            fps=fps,
            tags=tags,
        )
        found, found_tags = probe_with_tags(temporary)
        _verify(path, found=found, written=written, tags_match=tags.items() <= found_tags.items())
        _commit(temporary, path)
    except av.FFmpegError as error:
        failure = FilmWriteError if error.errno in _OF_FILES else FilmEncodeError
        raise failure(path, error.strerror or str(error)) from error
    except FilmUnreadableError as error:
        raise FilmVerifyError(path, differences=[error.reason]) from error
    finally:
        _discard(temporary)
    return found


def _discard(path: Path) -> None:
    """Remove what became no film. libav keeps open what it could not finish: emptied, it takes no space."""
    with suppress(FileNotFoundError):
        os.truncate(path, 0)
        path.unlink()


def _write(
    path: Path,
    *,
    frames: Iterator[NDArray[np.uint8]],
    waveform: NDArray[np.float32],
    sample_rate_hz: int,
    fps: int,
    tags: Mapping[str, str],
) -> MediaSummary:
    """Encode both tracks side by side; return what the file must hold."""
    first = next(frames, None)
    if first is None:
        raise FilmInputError("there are no frames to make a film of")
    height, width = first.shape[:2]
    # An absolute path, since libav takes `a:b.mp4` for an address.
    with av.open(
        str(path.absolute()), "w", format="mp4", container_options=_muxer_options(sample_rate_hz, fps=fps)
    ) as container:
        container.metadata.update(tags)
        video = VideoTrack(container, width=width, height=height, fps=fps)
        audio = AudioTrack(container, waveform, sample_rate_hz=sample_rate_hz)
        video.add(first)
        for frame in frames:
            audio.fill(video.frames / fps)
            video.add(frame)
        _check_length(waveform, frames=video.frames, sample_rate_hz=sample_rate_hz, fps=fps)
        audio.finish()
        video.finish()
    return MediaSummary(
        width=width,
        height=height,
        frames=video.frames,
        fps=fps,
        video_codec="h264",
        audio_codec="aac",
        sample_rate_hz=sample_rate_hz,
        channels=AUDIO_CHANNELS,
        samples=waveform.shape[1],
        video_seconds=video.frames / fps,
        audio_seconds=waveform.shape[1] / sample_rate_hz,
    )


def _muxer_options(sample_rate_hz: int, *, fps: int) -> dict[str, str]:
    return {
        "movflags": "+faststart",
        # Edit lists count in this scale: with libav's 1000 a track could end up to 0.5 ms off.
        "movie_timescale": str(math.lcm(sample_rate_hz, fps)),
        "video_track_timescale": str(1000 * fps),
        "fflags": "+bitexact",  # no encoder version and no date in the file
    }


def _verify(path: Path, *, found: MediaSummary, written: MediaSummary, tags_match: bool) -> None:
    want, got = written.model_dump(), found.model_dump()
    differences = [
        f"{name} is {got[name]}, not {want[name]}"
        for name in want
        if not (
            math.isclose(got[name], want[name]) if isinstance(want[name], float) else got[name] == want[name]
        )
    ]
    if not tags_match:
        differences.append("the tags differ")
    if differences:
        raise FilmVerifyError(path, differences=differences)


def _commit(temporary: Path, path: Path) -> None:
    """Make the bytes durable, then the name."""
    try:
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise FilmWriteError(path, error.strerror or str(error)) from error


def _each_frame(parts: Iterable[NDArray[np.uint8]]) -> Iterator[NDArray[np.uint8]]:
    """Yield the frames [H, W, 3] of all parts, which must be alike."""
    size: tuple[int, ...] | None = None
    for part in parts:
        _check_part(part)
        if size is not None and part.shape[1:] != size:
            raise FilmInputError(f"a part has frames of shape {part.shape[1:]} after frames of shape {size}")
        size = part.shape[1:]
        yield from part


def _check_part(part: NDArray[np.uint8]) -> None:
    if part.dtype != np.uint8 or part.ndim != 4 or part.shape[3] != 3:
        raise FilmInputError(f"frames must be uint8 [F, H, W, 3]; these are {part.dtype} {list(part.shape)}")
    height, width = part.shape[1:3]
    if height < 2 or width < 2 or height % 2 or width % 2:
        raise FilmInputError(f"a film of {width}x{height} pixels cannot be yuv420p; make both sides even")


def _check_waveform(waveform: NDArray[np.float32], *, sample_rate_hz: int) -> None:
    if waveform.dtype != np.float32 or waveform.ndim != 2 or waveform.shape[0] != AUDIO_CHANNELS:
        raise FilmInputError(
            f"the waveform must be float32 [2, N]; this one is {waveform.dtype} {list(waveform.shape)}"
        )
    if sample_rate_hz not in AAC_RATES_HZ:
        known = ", ".join(str(rate) for rate in AAC_RATES_HZ)
        raise FilmInputError(f"AAC has no sample rate of {sample_rate_hz} Hz; it has {known}")
    if not np.isfinite(waveform).all():
        raise FilmInputError("the waveform holds samples that are not finite")


def _check_length(waveform: NDArray[np.float32], *, frames: int, sample_rate_hz: int, fps: int) -> None:
    want = round(frames * sample_rate_hz / fps)
    if frames and waveform.shape[1] != want:
        raise FilmInputError(
            f"{frames} frames at {fps} a second need {want} samples at {sample_rate_hz} Hz;"
            f" the waveform has {waveform.shape[1]}"
        )


def _check_tags(tags: Mapping[str, str]) -> None:
    for name, value in tags.items():
        if name not in TAGS:
            raise FilmInputError(f"an mp4 keeps no tag {name!r}; it keeps {', '.join(TAGS)}")
        if not value or "\0" in value:
            raise FilmInputError(
                f"tag {name!r} is empty or holds a NUL, which an mp4 cannot keep; leave it out"
            )
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise FilmInputError(f"tag {name!r} is no valid Unicode text: {error.reason}") from error
