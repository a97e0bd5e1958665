"""The smallest real files of every kind, made by the encoders that `media` brings."""

import wave
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from PIL import Image


def picture(path: Path, *, width: int = 64, height: int = 48, shade: int = 90) -> Path:
    Image.new("RGB", (width, height), (shade, 40, 200)).save(path)
    return path


def sound(path: Path, *, seconds: float = 2.0, rate_hz: int = 8_000) -> Path:
    tone = np.sin(np.arange(round(seconds * rate_hz)) * 0.3) * 9_000
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(tone.astype("<i2").tobytes())
    return path


def clip(path: Path, *, seconds: float = 2.0, width: int = 64, height: int = 48) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=24, width=width, height=height, pix_fmt="yuv420p")
        stream.time_base = Fraction(1, 24)
        for number in range(round(seconds * 24)):
            pixels = np.full((height, width, 3), number * 3 % 256, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path
