"""What people hand in, as `h3 check` tells of it: what becomes of each kind of file, and what it costs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import own_media
import pytest
from h3_command import RunH3, line, sentence
from PIL import Image

FILM = ["--width", "320", "--height", "192", "--seconds", "5"]


def photo(path: Path) -> None:
    own_media.write_picture(path, own_media.quarters(width=582, height=1200))


def turned(path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    own_media.write_picture(path, own_media.quarters(width=300, height=200), exif=exif)


def transparent(path: Path) -> None:
    pixels = np.zeros((48, 64, 4), np.uint8)
    pixels[..., 0] = 255
    own_media.write_picture(path, pixels)


def inks(path: Path) -> None:
    Image.new("CMYK", (64, 48), (0, 255, 255, 0)).save(path)


def mono(path: Path) -> None:
    own_media.write_sound(path, own_media.tone(3.0, rate=32_000, channels=1), rate=32_000)


def surround(path: Path) -> None:
    own_media.write_sound(path, own_media.tone(2.0, channels=6), layout="5.1")


def with_sound(path: Path) -> None:
    pictures = [own_media.colour(width=32, height=32)] * 48
    own_media.write_clip(path, pictures, sound=own_media.tone(2.0))


@pytest.mark.parametrize(
    ("name", "size", "change"),
    [
        ("photo.jpg", (160, 352), "Scaled from 582x1200 to 160x352 pixels."),
        ("photo.jpg,size=max", (576, 1216), "Scaled from 582x1200 to 576x1216 pixels."),
        ("turned.jpg", (192, 288), "Turned upright, as its EXIF orientation 6 says."),
        ("transparent.png", (64, 64), "ransparen"),
        ("inks.jpg", (64, 64), "CMYK"),
    ],
)
def test_a_picture_tells_its_size_its_rows_and_what_was_changed(
    h3: RunH3, tmp_path: Path, name: str, size: tuple[int, int], change: str
) -> None:
    path = tmp_path / name.partition(",")[0]
    {"photo": photo, "turned": turned, "transparent": transparent, "inks": inks}[path.stem](path)

    (told,) = line(h3("check", name, *FILM))["references"]

    rows = size[0] // 32 * (size[1] // 32)
    assert (told["width"], told["height"]) == size
    assert (told["tokens"], told["text_tokens"]) == (rows, rows + 8)
    assert any(change in sentence for sentence in told["changes"])


@pytest.mark.parametrize(
    ("make", "seconds", "change"),
    [
        (mono, 3.0, "Mono was duplicated to two channels."),
        (surround, 2.0, "Mixed down from 6 channels to stereo"),
    ],
)
def test_a_sound_beside_a_picture_tells_its_channels(
    h3: RunH3, tmp_path: Path, make: Callable[[Path], None], seconds: float, change: str
) -> None:
    photo(tmp_path / "photo.jpg")
    make(tmp_path / "voice.wav")

    _, told = line(h3("check", "photo.jpg", "voice.wav", *FILM))["references"]

    assert (told["samples"], told["tokens"]) == (32_000 * seconds, 80 * seconds)
    assert any(change in sentence for sentence in told["changes"])


@pytest.mark.parametrize("rate", [8_000, 22_050, 24_000, 44_100, 48_000])
def test_a_sound_of_any_rate_is_as_long(h3: RunH3, tmp_path: Path, rate: int) -> None:
    photo(tmp_path / "photo.jpg")
    own_media.write_sound(tmp_path / "voice.wav", own_media.tone(2.0, rate=rate), rate=rate)

    _, told = line(h3("check", "photo.jpg", "voice.wav", *FILM))["references"]

    assert (told["samples"], told["tokens"]) == (64_000, 160)
    assert f"Resampled from {rate:,} to 32,000 Hz." in told["changes"]


@pytest.mark.parametrize(("option", "rows"), [("", 160), (",audio=voice.wav", 240), (",audio=off", None)])
def test_a_clips_sound_is_its_own_another_or_none(
    h3: RunH3, tmp_path: Path, option: str, rows: int | None
) -> None:
    with_sound(tmp_path / "run.mp4")
    mono(tmp_path / "voice.wav")

    (told,) = line(h3("check", f"run.mp4{option}", *FILM))["references"]

    assert (told["sound"] and told["sound"]["tokens"]) == rows
    assert told["tokens"] == 12 + (rows or 0)  # 39 frames of one row each are 12 latents


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("page.png", b"<!doctype html><html>", "an HTML page, as a failed download leaves"),
        ("film.mp4", b"\0\0\0\x20ftypisom" + bytes(20), "film.mp4"),
        ("notes.txt", b"remember the milk", "it is no medium that is read, but text"),
    ],
)
def test_what_is_no_medium_is_refused(
    h3: RunH3, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)

    done = h3("check", name)

    assert done.returncode == 2
    assert said in sentence(done)


def test_a_bomb_is_refused_by_its_header(h3: RunH3, tmp_path: Path) -> None:
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")

    done = h3("check", "bomb.png")

    assert done.returncode == 2
    assert "references[0] (bomb.png): " in sentence(done)
    assert "pixels" in sentence(done)
