"""Tags that would keep libav busy for minutes are refused; usual ones, and several in a row, are read."""

import struct
import time
from collections.abc import Callable
from pathlib import Path

import own_media
import pytest

from media.errors import ReferenceUnreadableError
from media.prepared import PreparedMedia
from queue_schemas import limits

Prepare = Callable[..., list[PreparedMedia]]
COUNT = 60_000


def comments(count: int) -> bytes:
    texts = b"".join(struct.pack("<I", 8) + b"%06d=a" % number for number in range(count))
    return struct.pack("<II", 0, count) + texts


def id3(frames: bytes) -> bytes:
    return b"ID3\3\0\0" + bytes(len(frames) >> shift & 127 for shift in (21, 14, 7, 0)) + frames


def flac(path: Path, count: int) -> None:
    whole = own_media.write_sound(path, own_media.tone(2.1)).read_bytes()
    block = comments(count)
    path.write_bytes(whole[:42] + b"\4" + len(block).to_bytes(3) + block + whole[42:])


def mp3(path: Path, count: int) -> None:
    whole = own_media.write_sound(path, own_media.tone(2.1)).read_bytes()
    frames = (b"PRIV" + struct.pack(">IH", 8, 0) + b"%06d\0a" % number for number in range(count))
    path.write_bytes(id3(b"".join(frames)) + whole)


def ogg(path: Path, count: int) -> None:
    """Write the two packets of an Opus file's header, without checksums."""

    def page(number: int, data: bytes) -> bytes:
        lengths = bytes([255] * (len(data) // 255)) + bytes([len(data) % 255] * (len(data) < 255 * 255))
        head = struct.pack("<QIIIB", 0, 1, number, 0, len(lengths))
        return b"OggS\0\0" + head + lengths + data

    packet = b"OpusTags" + comments(count)
    parts = [packet[at : at + 255 * 255] for at in range(0, len(packet), 255 * 255)]
    path.write_bytes(b"".join(page(number, part) for number, part in enumerate([b"OpusHead", *parts])))


def element(name: bytes, body: bytes) -> bytes:
    return name + (1 << 56 | len(body)).to_bytes(8) + body


def mka(path: Path, count: int) -> None:
    whole = own_media.write_sound(path, own_media.tone(2.1), codec="libopus", format="matroska").read_bytes()
    texts = (element(b"\x45\xa3", b"%06d" % number) + element(b"\x44\x87", b"a") for number in range(count))
    tag = element(b"\x73\x73", element(b"\x63\xc0", b"") + b"".join(element(b"\x67\xc8", t) for t in texts))
    segment, info = whole.index(b"\x18\x53\x80\x67"), whole.index(b"\x15\x49\xa9\x66")
    unsized = whole[: segment + 4] + b"\1" + b"\xff" * 7
    path.write_bytes(unsized + element(b"\x12\x54\xc3\x67", tag) + whole[info:])


@pytest.mark.parametrize("write", [flac, mp3, ogg, mka])
def test_very_many_tags_are_refused_before_libav_reads_them(
    prepare: Prepare, tmp_path: Path, write: Callable[[Path, int], None]
) -> None:
    write(tmp_path / f"a.{write.__name__}", COUNT)

    with pytest.raises(ReferenceUnreadableError, match=r"references\[0\].*its tags hold 60,.*at most 4,000"):
        prepare(f"a.{write.__name__}", kind="audio")


@pytest.mark.parametrize("write", [flac, mp3, mka])
def test_some_tags_are_read_over(
    prepare: Prepare, tmp_path: Path, write: Callable[[Path, int], None]
) -> None:
    write(tmp_path / f"a.{write.__name__}", 100)  # an MP3's own tag follows the one that is added

    (sound,) = prepare(f"a.{write.__name__}", kind="audio")

    assert sound.samples.shape[1] / 32_000 == pytest.approx(2.1, abs=0.02)


def test_a_header_that_takes_too_long_is_refused(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MEDIA_OPENING_SECONDS", 0.3)
    path = own_media.write_sound(tmp_path / "a.wav", own_media.tone(2.1))
    whole = path.read_bytes()
    texts = b"".join(b"%04x" % number + struct.pack("<I", 2) + b"a\0" for number in range(COUNT))
    path.write_bytes(whole[:12] + b"LIST" + struct.pack("<I", len(texts) + 4) + b"INFO" + texts + whole[12:])

    with pytest.raises(ReferenceUnreadableError, match=r"its header is not read after 0\.3 s"):
        prepare("a.wav", kind="audio")


def test_the_time_for_a_header_is_not_that_for_the_rest(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MEDIA_OPENING_SECONDS", 0.15)
    pictures = [own_media.colour(width=640, height=480)] * 96
    own_media.write_clip(tmp_path / "a.mp4", pictures, options={"preset": "ultrafast"})

    start = time.monotonic()
    (clip,) = prepare("a.mp4", kind="video", conventions="diffusers")

    assert len(clip.frames) == 96
    assert time.monotonic() - start > 0.3
