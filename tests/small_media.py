"""The smallest real file of each kind, for tests that need some file and ask nothing of what it shows."""

from pathlib import Path

import own_media


def picture(path: Path, *, width: int = 64, height: int = 48, shade: int = 90) -> Path:
    return own_media.write_picture(path, own_media.colour(width=width, height=height, rgb=(shade, 40, 200)))


def sound(path: Path, *, seconds: float = 2.0, rate_hz: int = 8_000) -> Path:
    tone = own_media.tone(seconds, rate=rate_hz, channels=1)
    return own_media.write_sound(path, tone, rate=rate_hz)


def clip(path: Path, *, seconds: float = 2.0, width: int = 64, height: int = 48) -> Path:
    return own_media.write_clip(path, [own_media.colour(width=width, height=height)] * round(seconds * 24))
