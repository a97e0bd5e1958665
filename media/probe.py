"""What a film holds, found by decoding all of it.

Seconds are those at which the last picture and the last sample end on the film's own clock, so a late start
counts as length. A rate that is no whole number of frames a second is refused: no film made here has one.
"""

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.subtitles.subtitle import SubtitleSet
from av.video.stream import VideoStream

from media.errors import FilmUnreadableError
from queue_schemas.benchmark import MediaSummary

CUT_SECONDS = Fraction(1, 1000)
"""A track that ends this much before its own index says is cut off; less is a container's coarse clock."""


@dataclass(slots=True, kw_only=True)
class _Decoded:
    """What decoding has met so far; ends are in seconds."""

    frames: int = 0
    samples: int = 0
    video_end: Fraction = Fraction(0)
    audio_end: Fraction = Fraction(0)


def probe(path: Path) -> MediaSummary:
    """Decode every frame and sample of a film and say what there was. Raises FilmUnreadableError."""
    return probe_with_tags(path)[0]


def probe_with_tags(path: Path) -> tuple[MediaSummary, dict[str, str]]:
    """Do what `probe` does; return the film's tags too, among them `title` and `comment`."""
    try:
        with av.open(str(path.absolute())) as container:
            return _summary(container, path), dict(container.metadata)
    except (av.FFmpegError, UnicodeDecodeError) as error:
        raise FilmUnreadableError(path, str(error)) from error


def _summary(container: InputContainer, path: Path) -> MediaSummary:
    if not container.streams.video or not container.streams.audio:
        raise FilmUnreadableError(path, f"it has no {'sound' if container.streams.video else 'pictures'}")
    video, audio = container.streams.video[0], container.streams.audio[0]
    fps = video.average_rate
    if fps is None or fps.denominator != 1:
        raise FilmUnreadableError(path, f"it runs at {fps} frames a second, which is no whole number")
    video.thread_type = "AUTO"

    found = _decode(container, video, audio, path=path)
    _check_whole(video, "pictures", path=path, end=found.video_end)
    _check_whole(audio, "sound", path=path, end=found.audio_end)
    return MediaSummary(
        width=video.width,
        height=video.height,
        frames=found.frames,
        fps=int(fps),
        video_codec=video.codec_context.codec.canonical_name,
        audio_codec=audio.codec_context.codec.canonical_name,
        sample_rate_hz=audio.sample_rate,
        channels=audio.layout.nb_channels,
        samples=found.samples,
        video_seconds=float(found.video_end),
        audio_seconds=float(found.audio_end),
    )


def _decode(container: InputContainer, video: VideoStream, audio: AudioStream, *, path: Path) -> _Decoded:
    found = _Decoded()
    for frame in container.decode(video, audio):
        assert not isinstance(frame, SubtitleSet)  # neither of the two streams
        if frame.pts is None or frame.time_base is None:
            raise FilmUnreadableError(path, "a picture or a block of sound has no time")
        start = frame.pts * frame.time_base
        if isinstance(frame, av.VideoFrame):
            found.frames += 1
            found.video_end = max(found.video_end, start + frame.duration * frame.time_base)
        else:
            found.samples += frame.samples
            found.audio_end = max(found.audio_end, start + Fraction(frame.samples, frame.sample_rate))
    return found


def _check_whole(stream: VideoStream | AudioStream, name: str, *, path: Path, end: Fraction) -> None:
    """Refuse a track that its file no longer holds to the end: decoders pass over that without a word."""
    if stream.duration is None or stream.time_base is None:
        return  # a container without an index, which cannot tell
    length = stream.duration * stream.time_base
    if end < length - CUT_SECONDS:
        raise FilmUnreadableError(
            path, f"it is cut off, with {name} for {float(end):.3f} s of {float(length):.3f} s"
        )
