"""A clip's frames: upright, square, in sRGB, at the size they are encoded at."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import own_media
import pytest
from numpy.typing import NDArray
from PIL import Image

from media.errors import ReferenceUnreadableError
from media.facts import probe_reference
from media.pixels import Turn, turn_of
from media.prepared import PreparedClip, PreparedMedia
from media.spool import SpooledFrames
from queue_schemas import geometry

Prepare = Callable[..., list[PreparedMedia]]
UPRIGHT = own_media.quarters(width=96, height=64)


def only(prepared: list[PreparedMedia]) -> PreparedClip:
    (clip,) = prepared
    assert isinstance(clip, PreparedClip)
    return clip


def first(clip: PreparedClip) -> NDArray[np.uint8]:
    return clip.frames.take([0])[0]


@pytest.mark.parametrize(
    ("turned", "expected", "told"),
    [
        (0, "RGBW", None),
        (90, "GBWR", "turned by 90 degrees anticlockwise"),
        (180, "BWRG", "turned by 180 degrees"),
        (270, "WRGB", "turned by 90 degrees clockwise"),
        ("mirrored", "GRWB", "mirrored"),
    ],
)
def test_frames_are_turned_as_the_container_says(
    prepare: Prepare, tmp_path: Path, turned: int | str, expected: str, told: str | None
) -> None:
    how = {"mirrored": True} if turned == "mirrored" else {"turned": turned}
    path = own_media.write_clip(tmp_path / "a.mp4", [UPRIGHT] * 50, **how)

    clip = only(prepare("a.mp4", kind="video"))

    size = (64, 96) if turned in (90, 270) else (96, 64)
    facts = probe_reference(path, kind="video")
    assert (facts.width, facts.height) == size
    assert (clip.width, clip.height) == size
    assert own_media.corners(first(clip)) == expected
    assert [change for change in clip.changes if "container" in change] == (
        [f"Its frames were {told}, as its container says."] if told else []
    )


def test_every_display_matrix_of_quarter_turns_is_read() -> None:
    one = 65_536
    assert turn_of([one, 0, 0, 0, one, 0, 0, 0, 0]) == Turn()
    assert turn_of([0, one, 0, -one, 0, 0, 0, 0, 0]) == Turn(True, True, False)
    assert turn_of([0, -one, 0, one, 0, 0, 0, 0, 0]) == Turn(True, False, True)
    assert turn_of([-one, 0, 0, 0, -one, 0, 0, 0, 0]) == Turn(False, True, True)
    assert turn_of([0, one, 0, one, 0, 0, 0, 0, 0]) == Turn(True, False, False)


@pytest.mark.parametrize(
    ("aspect", "turned", "size"),
    [(Fraction(4, 3), 0, (128, 64)), (Fraction(1, 2), 0, (96, 128)), (Fraction(4, 3), 90, (64, 128))],
)
def test_pixels_become_square(
    prepare: Prepare, tmp_path: Path, aspect: Fraction, turned: int, size: tuple[int, int]
) -> None:
    own_media.write_clip(tmp_path / "a.mp4", [UPRIGHT] * 50, aspect=aspect, turned=turned)

    clip = only(prepare("a.mp4", kind="video"))

    assert (clip.width, clip.height) == size
    assert f"Its pixels of {aspect.numerator}:{aspect.denominator} became square." in clip.changes
    assert own_media.corners(first(clip)) == ("GBWR" if turned else "RGBW")


@pytest.mark.parametrize("matrix", [1, 5, 6, 7, 9, 2])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv444p10le"])
def test_colours_follow_matrix_and_range(
    prepare: Prepare, tmp_path: Path, matrix: int, full: bool, pix_fmt: str
) -> None:
    colours = {"colorspace": matrix, "color_range": 2 if full else 1}
    own_media.write_clip(
        tmp_path / "a.mp4", [UPRIGHT] * 50, pix_fmt=pix_fmt, colours=colours, options={"crf": "1"}
    )

    clip = only(prepare("a.mp4", kind="video"))

    found, expected = first(clip).astype(int), UPRIGHT.astype(int)
    for y in (16, 48):
        for x in (20, 76):
            assert np.abs(found[y, x] - expected[y, x]).max() <= 3
    assert ("Its 10 bits per channel were reduced to 8." in clip.changes) == (pix_fmt != "yuv420p")


def test_an_untagged_matrix_is_bt709_from_720_lines_on(tmp_path: Path) -> None:
    from media.pixels import ToRgb

    def decoded(height: int) -> NDArray[np.uint8]:
        flat = own_media.colour(width=1280, height=height, rgb=(30, 200, 30))
        own_media.write_clip(tmp_path / "a.mkv", [flat], codec="ffv1", colours={"colorspace": 1})
        with av.open(str(tmp_path / "a.mkv")) as container:
            frame = next(container.decode(video=0))
            frame.colorspace = 2
            return ToRgb()(frame)[8, 8]

    assert np.abs(decoded(720).astype(int) - (30, 200, 30)).max() <= 2
    assert np.abs(decoded(716).astype(int) - (30, 200, 30)).max() > 8


def write_flat(path: Path, level: float, colours: dict[str, int], *, frames: int = 50) -> None:
    """Write 10-bit frames whose RGB values are `level` of full scale, in BT.2020's matrix."""
    flat = np.full((64, 96, 3), round(level * 65_535), np.uint16)
    frame = av.VideoFrame.from_ndarray(flat, format="rgb48le").reformat(
        format="yuv420p10le", dst_colorspace=9, dst_color_range=1, src_color_range=2
    )
    tags = {"colorspace": 9, "color_range": 1, **colours}
    own_media.write_clip(
        path, [frame.to_ndarray()] * frames, codec="libx264", pix_fmt="yuv420p10le", colours=tags
    )


@pytest.mark.parametrize(
    ("transfer", "level", "expected"), [(16, 0.581, 240), (16, 0.44, 136), (18, 0.75, 241), (18, 0.5, 137)]
)
def test_hdr_follows_the_rule_of_pictures(
    prepare: Prepare, tmp_path: Path, transfer: int, level: float, expected: int
) -> None:
    write_flat(tmp_path / "a.mp4", level, {"color_trc": transfer, "color_primaries": 9})

    clip = only(prepare("a.mp4", kind="video"))

    assert np.abs(first(clip).astype(int) - expected).max() <= 3
    assert any(change.startswith(f"HDR ({'PQ' if transfer == 16 else 'HLG'})") for change in clip.changes)


def test_wide_primaries_become_srgbs(prepare: Prepare, tmp_path: Path) -> None:
    green = own_media.colour(width=96, height=64, rgb=(60, 180, 60))
    own_media.write_clip(tmp_path / "a.mp4", [green] * 50, colours={"color_primaries": 12, "colorspace": 1})

    clip = only(prepare("a.mp4", kind="video"))

    red, level, blue = first(clip)[20, 20].astype(int)
    assert red < 20
    assert level > 180
    assert blue < 60
    assert "Its colours were converted to sRGB from Display P3." in clip.changes


def test_a_transparent_clip_lies_on_white(prepare: Prepare, tmp_path: Path) -> None:
    rgba = np.zeros((64, 96, 4), np.uint8)
    rgba[:, 48:] = (220, 30, 30, 255)
    own_media.write_clip(
        tmp_path / "a.mov", [rgba] * 50, codec="prores_ks", pix_fmt="yuva444p10le", options={"profile": "4"}
    )

    clip = only(prepare("a.mov", kind="video"))

    assert first(clip)[20, 10].min() >= 250
    assert np.abs(first(clip)[20, 80].astype(int) - (220, 30, 30)).max() <= 6
    assert "What is transparent in it was laid over white." in clip.changes


def test_each_frame_is_scaled_by_lanczos_alone(prepare: Prepare, tmp_path: Path) -> None:
    picture = np.random.default_rng(5).integers(0, 256, (72, 100, 3), dtype=np.uint8)
    own_media.write_clip(tmp_path / "a.mov", [picture] * 50, codec="qtrle", pix_fmt="rgb24")

    small = only(prepare("a.mov", kind="video"))
    canvas = only(prepare("a.mov", kind="video", frames=22, conventions="diffusers"))

    for clip, size in ((small, (96, 64)), (canvas, geometry.resolve_canvas(100, 72))):
        expected = Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS)
        assert np.array_equal(first(clip), np.asarray(expected))
        assert f"Each frame was scaled from 100x72 to {size[0]}x{size[1]} pixels." in clip.changes


def test_spoiled_pictures_are_named(prepare: Prepare, tmp_path: Path) -> None:
    path = own_media.write_clip(tmp_path / "a.mp4", [UPRIGHT] * 60, sound=own_media.tone(2.5))
    own_media.spoil(path, "video", first=20)

    with pytest.raises(ReferenceUnreadableError, match=r"its track of pictures \(h264\) is broken"):
        prepare("a.mp4", kind="video")


def test_frames_are_read_as_often_as_wanted() -> None:
    frames = np.random.default_rng(1).integers(0, 256, (40, 8, 12, 3), dtype=np.uint8)
    spool = SpooledFrames(height=8, width=12)
    for frame in frames:
        spool.append(frame)
    spool.append(frames[3], times=2)

    pieces = [list(spool) for _ in range(2)]

    assert [len(piece) for piece in pieces[0]] == [17, 17, 8]
    for run in pieces:
        assert np.array_equal(np.concatenate(run), np.concatenate([frames, frames[[3, 3]]]))
    assert np.array_equal(spool.take([41, 0]), frames[[3, 0]])
    assert [len(piece) for piece in spool.pieces(22)] == [17, 5]
    with pytest.raises(IndexError, match="frame 42 of 42"):
        spool.take([42])


def test_no_file_of_frames_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spool = SpooledFrames(height=8, width=12)
    spool.append(np.zeros((8, 12, 3), np.uint8))

    assert list(tmp_path.iterdir()) == []
    spool.close()
    with pytest.raises(OSError, match="Bad file"):
        spool.take([0])
