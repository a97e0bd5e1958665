"""Pictures, clips and sounds made with real encoders, for the tests that need some."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

AUDIO_CODECS = {"wav": "pcm_s16le", "mp3": "libmp3lame", "flac": "flac", "ogg": "libopus", "webm": "libopus"}


def colour(*, width: int = 64, height: int = 48, rgb: Sequence[int] = (200, 60, 30)) -> NDArray[np.uint8]:
    """Make one flat picture [H, W, 3]."""
    return np.broadcast_to(np.array(rgb, np.uint8), (height, width, 3)).copy()


def quarters(*, width: int = 64, height: int = 48) -> NDArray[np.uint8]:
    """Make a picture whose quarters are red, green, blue and white, clockwise from the left upper one."""
    picture = np.zeros((height, width, 3), np.uint8)
    y, x = height // 2, width // 2
    picture[:y, :x], picture[:y, x:] = (220, 30, 30), (30, 200, 30)
    picture[y:, x:], picture[y:, :x] = (30, 30, 220), (235, 235, 235)
    return picture


def corners(pixels: NDArray[np.uint8]) -> str:
    """Name the quarters of `quarters`, clockwise from the left upper one, as letters: `RGBW` when upright."""
    height, width = pixels.shape[:2]
    y, x = height // 4, width // 4
    found = ""
    for row, column in ((y, x), (y, -x), (-y, -x), (-y, x)):
        red, green, blue = (int(value) > 128 for value in pixels[row, column])
        found += {(1, 0, 0): "R", (0, 1, 0): "G", (0, 0, 1): "B", (1, 1, 1): "W"}.get((red, green, blue), "?")
    return found


def tone(seconds: float, *, rate: int = 48_000, channels: int = 2, hz: float = 440.0) -> NDArray[np.float32]:
    """Make a tone [C, N] at half of full scale."""
    wave = 0.5 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)
    return np.broadcast_to(wave.astype(np.float32), (channels, wave.size)).copy()


def write_sound(
    path: Path,
    samples: NDArray[np.float32],
    *,
    rate: int = 48_000,
    layout: str | None = None,
    codec: str | None = None,
    format: str | None = None,
) -> Path:
    """Write samples [C, N] in the form that the name ends in."""
    layout = layout or {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}[len(samples)]
    codec = codec or AUDIO_CODECS.get(path.suffix[1:], "aac")
    with av.open(str(path), "w", format=format) as container:
        _Sound(container, samples, rate=rate, layout=layout, codec=codec).write()
    return path


def write_clip(
    path: Path,
    pictures: Iterable[NDArray[Any]],
    *,
    fps: Fraction | int = 24,
    times: Sequence[Fraction] | None = None,
    time_base: Fraction | None = None,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    options: Mapping[str, str] | None = None,
    container_options: Mapping[str, str] | None = None,
    colours: Mapping[str, int] | None = None,
    turned: int = 0,
    mirrored: bool = False,
    aspect: Fraction | None = None,
    sound: NDArray[np.float32] | None = None,
    sound_rate: int = 48_000,
    sound_codec: str | None = None,
    sound_start: float = 0.0,
    format: str | None = None,
) -> Path:
    """Write pictures (RGB or RGBA [H, W, C], or planes of `pix_fmt` as libav has them), perhaps sound.

    `times` are stamps in seconds, one per picture and one for the end; else the rate is constant. `turned` is
    anticlockwise, as `VideoFrame.rotation`. `colours` sets fields of the encoder such as `color_trc`.
    """
    time_base = time_base or 1 / Fraction(fps)
    with av.open(str(path), "w", format=format, container_options=dict(container_options or {})) as container:
        stream = container.add_stream(codec, rate=fps, options={"crf": "12", **(options or {})})
        stream.pix_fmt = pix_fmt
        stream.time_base = stream.codec_context.time_base = time_base
        if aspect:
            stream.sample_aspect_ratio = stream.codec_context.sample_aspect_ratio = aspect
        if turned or mirrored:
            stream.set_display_rotation(turned, hflip=mirrored)
        for name, value in (colours or {}).items():
            setattr(stream.codec_context, name, value)
        track = None
        lengths: dict[int, int] = {}  # of what each stamp begins, which encoders forget
        for number, picture in enumerate(pictures):
            frame = _frame(picture, pix_fmt, colours or {})
            if not number:
                stream.width, stream.height = frame.width, frame.height
                if sound is not None:
                    codec_of_sound = sound_codec or AUDIO_CODECS.get(path.suffix[1:], "aac")
                    layout = {1: "mono", 2: "stereo", 6: "5.1"}[len(sound)]
                    track = _Sound(
                        container, sound, rate=sound_rate, layout=layout, codec=codec_of_sound,
                        start=sound_start,
                    )  # fmt: skip
            start = times[number] if times else number / Fraction(fps)
            end = times[number + 1] if times else (number + 1) / Fraction(fps)
            frame.time_base = time_base
            frame.pts = round(start / time_base)
            lengths[frame.pts] = round(end / time_base) - frame.pts
            for packet in stream.encode(frame):
                packet.duration = lengths[packet.pts]
                container.mux(packet)
        for packet in stream.encode(None):
            packet.duration = lengths[packet.pts]
            container.mux(packet)
        if track is not None:
            track.write()
    return path


def _frame(picture: NDArray[Any], pix_fmt: str, colours: Mapping[str, int]) -> av.VideoFrame:
    if picture.ndim == 3:
        layout = "rgba" if picture.shape[2] == 4 else "rgb24"
        return av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format=layout).reformat(
            format=pix_fmt,
            dst_colorspace=colours.get("colorspace"),
            dst_color_range=colours.get("color_range"),
        )
    frame = av.VideoFrame.from_ndarray(picture, format=pix_fmt)
    for name, value in colours.items():
        setattr(frame, name, value)
    return frame


class _Sound:
    """One track, fed in blocks."""

    def __init__(
        self,
        container: Any,
        samples: NDArray[np.float32],
        *,
        rate: int,
        layout: str,
        codec: str,
        start: float = 0.0,
    ) -> None:
        self._container, self._samples, self._rate, self._layout = container, samples, rate, layout
        self._stream = container.add_stream(codec, rate=rate, layout=layout)
        self._start = round(start * rate)

    def write(self) -> None:
        context = self._stream.codec_context
        resampler = av.AudioResampler(
            format=context.format, layout=self._layout, rate=self._rate, frame_size=context.frame_size or None
        )
        block = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(self._samples), format="fltp", layout=self._layout
        )
        block.sample_rate, block.time_base, block.pts = self._rate, Fraction(1, self._rate), self._start
        if not self._samples.size:
            return
        for frame in [*resampler.resample(block), *resampler.resample(None)]:
            self._container.mux(self._stream.encode(frame))
        self._container.mux(self._stream.encode(None))


def write_picture(path: Path, pixels: NDArray[np.uint8], **options: Any) -> Path:
    """Save a picture by Pillow in the form that the name ends in."""
    Image.fromarray(pixels).save(path, **options)
    return path


def spoil(path: Path, kind: str, *, first: int = 0) -> Path:
    """Overwrite the packets of one track, from the `first`, with noise; the container stays whole."""
    noise = np.random.default_rng(1)
    with av.open(str(path)) as container:
        (stream,) = (stream for stream in container.streams if stream.type == kind)
        places = [(packet.pos, packet.size) for packet in container.demux(stream) if packet.size]
    data = bytearray(path.read_bytes())
    for at, size in places[first:]:
        data[at : at + size] = noise.integers(0, 256, size, dtype=np.uint8).tobytes()
    path.write_bytes(data)
    return path
