"""What a film holds, found by decoding all of it.

Seconds are those at which the last picture and the last sample end on the film's own clock, so a late start
counts as length. A rate that is no whole number of frames a second is refused: no film made here has one.
"""

from fractions import Fraction
from pathlib import Path

import av
from av.container import InputContainer
from av.subtitles.subtitle import SubtitleSet

from media.errors import FilmUnreadableError
from queue_schemas.benchmark import MediaSummary


def probe(path: Path) -> MediaSummary:
    """Decode every frame and sample of a film and say what there was. Raises FilmUnreadableError."""
    try:
        with av.open(str(path.absolute())) as container:
            return _summary(container, path)
    except (av.FFmpegError, UnicodeDecodeError) as error:
        raise FilmUnreadableError(path, str(error)) from error


def read_tags(path: Path) -> dict[str, str]:
    """Return the film's tags, among them `title` and `comment`. Raises FilmUnreadableError."""
    try:
        with av.open(str(path.absolute())) as container:
            return dict(container.metadata)
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

    frames = samples = 0
    video_end = audio_end = Fraction(0)
    for frame in container.decode(video, audio):
        assert not isinstance(frame, SubtitleSet)  # neither of the two streams
        if frame.pts is None or frame.time_base is None:
            raise FilmUnreadableError(path, "a picture or a block of sound has no time")
        start = frame.pts * frame.time_base
        if isinstance(frame, av.VideoFrame):
            frames += 1
            video_end = max(video_end, start + frame.duration * frame.time_base)
        else:
            samples += frame.samples
            audio_end = max(audio_end, start + Fraction(frame.samples, frame.sample_rate))

    return MediaSummary(
        width=video.width,
        height=video.height,
        frames=frames,
        fps=int(fps),
        video_codec=video.codec_context.codec.canonical_name,
        audio_codec=audio.codec_context.codec.canonical_name,
        sample_rate_hz=audio.sample_rate,
        channels=audio.layout.nb_channels,
        samples=samples,
        video_seconds=float(video_end),
        audio_seconds=float(audio_end),
    )
