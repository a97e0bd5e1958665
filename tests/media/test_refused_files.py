"""Files that are no medium, are broken, or claim too much: refused early, by place and name."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import own_media
import pytest
from PIL import Image

from media.errors import ReferenceUnreadableError
from media.facts import probe_reference
from media.prepared import PreparedMedia
from queue_schemas import limits
from queue_schemas.errors import ErrorCode

Prepare = Callable[..., list[PreparedMedia]]
NOISE = np.random.default_rng(3)


def noise(frames: int) -> list[np.ndarray]:
    return list(NOISE.integers(0, 256, (frames, 48, 64, 3), dtype=np.uint8))


def refusal(prepare: Prepare, name: str, *, kind: str) -> str:
    with pytest.raises(ReferenceUnreadableError) as caught:
        prepare(name, kind=kind)
    assert caught.value.code is ErrorCode.REFERENCE_UNREADABLE
    assert str(caught.value).startswith(f"references[0] ({name}): ")
    return caught.value.reason


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "it is empty (0 bytes)", id="empty"),
        pytest.param(b"<!DOCTYPE html><html>", "an HTML page, as a failed download leaves", id="page"),
        pytest.param(b"\xef\xbb\xbf\n<html lang=en>", "an HTML page", id="page with a mark"),
        pytest.param(b"<?xml version='1.0'?><svg/>", "an SVG drawing", id="drawing"),
        pytest.param(b"%PDF-1.7\n", "a PDF document", id="document"),
        pytest.param(b"PK\x03\x04rest", "a ZIP archive", id="archive"),
        pytest.param(b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "a playlist", id="playlist"),
        pytest.param(b"ffconcat version 1.0\nfile /etc/passwd\n", "text", id="list of files"),
        pytest.param(b"\xff\x0a" + bytes(40), "a JPEG XL picture", id="JPEG XL"),
        pytest.param(bytes(range(256)), "bytes of no known kind", id="bytes"),
        pytest.param(b"\0", "bytes of no known kind", id="one byte"),
    ],
)
def test_what_is_no_medium_is_named(
    prepare: Prepare, tmp_path: Path, content: bytes, said: str, kind: str
) -> None:
    name = {"image": "a.png", "video": "a.mp4", "audio": "a.wav"}[kind]
    (tmp_path / name).write_bytes(content)

    assert said in refusal(prepare, name, kind=kind)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("a.png", "video", "it is a PNG picture, not a clip"),
        ("a.gif", "video", "convert an animation to mp4"),
        ("a.wav", "image", "it is a WAV file, not a picture"),
        ("mute.mp4", "image", "it is an MP4 or QuickTime file, not a picture"),
        ("mute.mp4", "audio", "it has no sound"),
        ("only.mp4", "video", "it has no pictures"),
        ("a.wav", "video", "it has no pictures"),
    ],
)
def test_a_medium_of_another_kind_is_named(
    prepare: Prepare, tmp_path: Path, name: str, kind: str, said: str
) -> None:
    path = tmp_path / name
    if name in ("a.png", "a.gif"):
        own_media.write_picture(path, own_media.colour())
    elif name == "mute.mp4":
        own_media.write_clip(path, [own_media.colour()] * 50)
    else:
        own_media.write_sound(path, own_media.tone(2))

    assert said in refusal(prepare, name, kind=kind)


def test_a_missing_file_and_a_folder_are_said(prepare: Prepare, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()

    assert "No such file" in refusal(prepare, "none.png", kind="image")
    assert "Is a directory" in refusal(prepare, "folder.png", kind="image")


def test_the_end_of_a_name_is_not_believed_but_told(prepare: Prepare, tmp_path: Path) -> None:
    own_media.write_picture(tmp_path / "a.jpg", own_media.quarters()).rename(tmp_path / "a.png")
    own_media.write_sound(tmp_path / "b.wav", own_media.tone(2, rate=32_000), rate=32_000).rename(
        tmp_path / "b.MP3"
    )

    picture, sound = prepare("a.png", {"kind": "audio", "source": "b.MP3"})

    assert picture.changes[0] == "The name ends in .png, but the file is a JPEG picture and was read as that."
    assert sound.changes == ["The name ends in .mp3, but the file is a WAV file and was read as that."]


@pytest.mark.parametrize("ending", ["png", "jpg", "webp", "gif", "tif", "bmp", "heic", "avif"])
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.97])
def test_a_picture_that_is_cut_off_is_refused(
    prepare: Prepare, tmp_path: Path, ending: str, kept: float
) -> None:
    path, pixels = tmp_path / f"a.{ending}", noise(1)[0]
    if ending == "heic":
        import pillow_heif

        pillow_heif.from_pillow(Image.fromarray(pixels)).save(path)
    else:
        own_media.write_picture(path, pixels)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])

    refusal(prepare, path.name, kind="image")


@pytest.mark.parametrize("name", ["a.mp4", "fast.mp4", "a.mkv", "a.webm", "a.avi"])
@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_clip_that_is_cut_off_is_refused(prepare: Prepare, tmp_path: Path, name: str, kept: float) -> None:
    path = own_media.write_clip(
        tmp_path / name,
        noise(60),
        sound=own_media.tone(2.5),
        codec="libvpx" if name == "a.webm" else "libx264",
        options={"deadline": "realtime"} if name == "a.webm" else {"preset": "ultrafast"},
        container_options={"movflags": "faststart"} if name == "fast.mp4" else {},
    )
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])

    assert "cut off" in refusal(prepare, name, kind="video")


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.m4a"])
def test_a_sound_that_is_cut_off_is_refused(prepare: Prepare, tmp_path: Path, name: str) -> None:
    path = own_media.write_sound(tmp_path / name, own_media.tone(4))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * 0.8)])

    assert "cut off" in refusal(prepare, name, kind="audio")


def test_a_picture_of_too_many_pixels_is_refused_by_its_header(prepare: Prepare, tmp_path: Path) -> None:
    Image.new("1", (20_000, 20_000)).save(tmp_path / "bomb.png")
    Image.new("1", (9_460, 9_460)).save(tmp_path / "just.png")

    bomb = refusal(prepare, "bomb.png", kind="image")

    assert bomb == "it has 400,000,000 pixels; at most 89,478,485 are read; shrink it"
    assert "89,491,600 pixels" in refusal(prepare, "just.png", kind="image")


@pytest.mark.parametrize("chunk", [b"zTXt", b"iTXt", b"iCCP"])
def test_a_png_whose_text_unpacks_to_gigabytes_is_refused(
    prepare: Prepare, tmp_path: Path, chunk: bytes
) -> None:
    whole = io.BytesIO()
    Image.new("L", (64, 64)).save(whole, "png")
    packed = zlib.compress(bytes(100_000_000), 1)
    data = {b"zTXt": b"k\0\0", b"iTXt": b"k\0\1\0\0\0", b"iCCP": b"k\0\0"}[chunk] + packed
    bomb = struct.pack(">I", len(data)) + chunk + data + struct.pack(">I", zlib.crc32(chunk + data))
    png = whole.getvalue()
    (tmp_path / "a.png").write_bytes(png[:33] + bomb + png[33:])

    assert "too large" in refusal(prepare, "a.png", kind="image")


def test_a_png_of_endless_chunks_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    whole = io.BytesIO()
    Image.new("L", (64, 64)).save(whole, "png")
    empty = struct.pack(">I", 0) + b"prVt" + struct.pack(">I", zlib.crc32(b"prVt"))
    png = whole.getvalue()
    (tmp_path / "a.png").write_bytes(png[:33] + empty * (limits.MEDIA_BOXES + 1) + png[33:])

    assert "chunks" in refusal(prepare, "a.png", kind="image")


def put(path: Path, box: bytes, offset: int, value: int) -> None:
    """Write a 32-bit number into the first box of that name, `offset` bytes behind the name."""
    data = bytearray(path.read_bytes())
    at = data.find(box) + 4 + offset
    data[at : at + 4] = value.to_bytes(4)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("box", "numbers"),
    [
        pytest.param(b"stsz", {4: 1, 8: 10**9}, id="samples of one size"),
        pytest.param(b"stts", {8: 10**9}, id="samples of one duration"),
    ],
)
def test_an_mp4_that_claims_a_billion_frames_is_refused_by_its_index(
    prepare: Prepare, tmp_path: Path, box: bytes, numbers: dict[int, int]
) -> None:
    path = own_media.write_clip(tmp_path / "bomb.mp4", [own_media.colour()] * 60)
    for offset, value in numbers.items():
        put(path, box, offset, value)

    told = refusal(prepare, "bomb.mp4", kind="video")

    assert "claims 1,000,000,000 frames and blocks of sound; at most 4,000,000 are read" in told


def test_edit_lists_that_multiply_a_track_are_refused(prepare: Prepare, tmp_path: Path) -> None:
    path = own_media.write_clip(tmp_path / "bomb.mp4", [own_media.colour()] * 60)
    put(path, b"elst", 4, 10**6)

    assert "its edit list has 1,000,000 entries; at most 64" in refusal(prepare, "bomb.mp4", kind="video")


def test_fragments_that_claim_too_many_frames_are_refused(prepare: Prepare, tmp_path: Path) -> None:
    options = {"movflags": "frag_keyframe+empty_moov"}
    path = own_media.write_clip(tmp_path / "a.mp4", [own_media.colour()] * 60, container_options=options)
    put(path, b"trun", 4, 2**31)

    assert "claims 2,147,483,648" in refusal(prepare, "a.mp4", kind="video")


def test_a_length_that_the_header_invents_is_not_believed(prepare: Prepare, tmp_path: Path) -> None:
    long = own_media.write_clip(tmp_path / "long.mp4", [own_media.colour()] * 20 * 24, options={"crf": "40"})
    for box, offset in ((b"mvhd", 16), (b"mdhd", 16), (b"tkhd", 20)):
        put(long, box, offset, 3_000)
    short = own_media.write_clip(tmp_path / "short.mp4", [own_media.colour()] * 60)
    put(short, b"mvhd", 16, 10**9)

    assert "it lasts 20.000 s; a clip has at most 15 s" in refusal(prepare, "long.mp4", kind="video")
    assert probe_reference(short, kind="video").seconds == pytest.approx(2.5)


def test_too_many_tracks_are_refused(prepare: Prepare, tmp_path: Path) -> None:
    path = own_media.write_clip(tmp_path / "a.mp4", [own_media.colour()] * 60)
    data = path.read_bytes()
    at = data.find(b"trak") - 4
    trak = data[at : at + int.from_bytes(data[at : at + 4])]
    start = data.find(b"moov") - 4
    size = int.from_bytes(data[start : start + 4]) + len(trak) * limits.MEDIA_STREAMS
    more = data[:start] + size.to_bytes(4) + data[start + 4 : at] + trak * limits.MEDIA_STREAMS + data[at:]
    path.write_bytes(more)

    assert "more than 32 tracks" in refusal(prepare, "a.mp4", kind="video")


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_a_file_of_too_many_bytes_is_refused_with_both_numbers(
    prepare: Prepare, tmp_path: Path, kind: str
) -> None:
    mib = {"image": 30, "video": 50, "audio": 15}[kind]
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(mib * 1024 * 1024 + 1)

    told = refusal(prepare, "large.bin", kind=kind)

    assert f"it has {mib * 1024 * 1024 + 1:,} bytes" in told
    assert f"({mib} MiB)" in told


@pytest.mark.parametrize("name", ["wide.png", "tall.mp4"])
def test_a_ratio_beyond_four_is_refused(prepare: Prepare, tmp_path: Path, name: str) -> None:
    if name == "wide.png":
        own_media.write_picture(tmp_path / name, own_media.colour(width=260, height=64))
    else:
        own_media.write_clip(tmp_path / name, [own_media.colour(width=64, height=260)] * 60)

    told = refusal(prepare, name, kind="image" if name == "wide.png" else "video")

    assert "a ratio of 4.06:1; at most 4:1 is accepted; crop it" in told


def test_a_links_query_is_not_told(tmp_path: Path) -> None:
    from media.references import prepare_references
    from queue_schemas.jobs import build_job

    (tmp_path / "a.png").write_bytes(b"")
    link = "https://films.example/a.png?signature=secret"
    job = build_job({"prompt": "x", "references": [{"kind": "image", "source": link}]}, checkpoint="any")

    with pytest.raises(ReferenceUnreadableError, match=r"\(https://films\.example/a\.png\): it is empty"):
        prepare_references(job, {"references[0]": tmp_path / "a.png"})


@pytest.mark.parametrize("stuffing", [b"\xff", b"\0", b"\xff\xfe\0\2"], ids=["padding", "junk", "comments"])
def test_a_jpeg_that_begins_with_very_much_of_nothing_is_refused(
    prepare: Prepare, tmp_path: Path, stuffing: bytes
) -> None:
    path = own_media.write_picture(tmp_path / "a.jpg", own_media.quarters())
    whole = path.read_bytes()
    path.write_bytes(whole[:2] + b"\xff\xfe\0\2" + stuffing * 30_000 + whole[2:])

    with pytest.raises(ReferenceUnreadableError, match=r"references\[0\].* more than 20,000 markers"):
        prepare("a.jpg")
    path.write_bytes(whole[:2] + b"\xff\xfe\0\2" + stuffing * 300 + whole[2:])
    assert prepare("a.jpg")
