"""Whatever bytes a file holds, it is used or refused by our error, in bounded time."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import own_media
import pillow_heif
import pytest
from PIL import Image

from media.errors import ReferenceUnreadableError
from media.prepared import PreparedMedia

Prepare = Callable[..., list[PreparedMedia]]
FORMS = {
    "image": ["png", "jpg", "webp", "gif", "tif", "bmp", "heic", "avif"],
    "video": ["mp4", "mov", "mkv", "webm", "avi", "ts"],
    "audio": ["wav", "flac", "mp3", "ogg", "m4a", "aiff", "caf", "aac"],
}


def make(path: Path, kind: str) -> None:
    if kind == "image":
        image = Image.fromarray(own_media.quarters())
        exif = Image.Exif()
        exif[0x0112] = 6
        if path.suffix == ".heic":
            pillow_heif.from_pillow(image).save(path, exif=exif.tobytes())
        else:
            image.save(path, **({} if path.suffix in (".bmp", ".gif") else {"exif": exif}))
    elif kind == "video":
        codec = "libvpx" if path.suffix == ".webm" else "libx264"
        own_media.write_clip(path, [own_media.quarters()] * 52, codec=codec, sound=own_media.tone(2.1))
    else:
        codec = {".aiff": "pcm_s16be", ".caf": "alac"}.get(path.suffix)
        form = "adts" if path.suffix == ".aac" else None
        own_media.write_sound(path, own_media.tone(2.1), codec=codec, format=form)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind, forms in FORMS.items() for form in forms])
@pytest.mark.filterwarnings("ignore")  # Pillow warns of odd metadata, and of sizes that are refused
def test_spoilt_bytes_are_used_or_refused(prepare: Prepare, tmp_path: Path, kind: str, form: str) -> None:
    rng = np.random.default_rng(11)
    path = tmp_path / f"a.{form}"
    make(path, kind)
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    slowest = 0.0
    for run in range(120):
        data = whole.copy()
        reach = min(len(data), 2_000) if run % 2 else len(data)  # headers more often than their share
        places = rng.integers(0, reach, rng.integers(1, 12))
        if run % 4 == 0 and reach > 16:
            places[0] = max(16, places[0])
        data[places] = rng.integers(0, 256, len(places), dtype=np.uint8) if run % 3 else 255
        path.write_bytes(data[: rng.integers(1, len(data))].tobytes() if run % 7 == 0 else data.tobytes())

        start = time.monotonic()
        with suppress(ReferenceUnreadableError):
            prepare(path.name, kind=kind, frames=22)
        slowest = max(slowest, time.monotonic() - start)

    assert slowest < 20
