"""Pictures of every form: upright, sRGB, opaque, and each change told."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import own_media
import pillow_heif
import pytest
from numpy.typing import NDArray
from PIL import Image

from media.prepared import PreparedMedia, PreparedPicture

Prepare = Callable[..., list[PreparedMedia]]
UPRIGHT = own_media.quarters(width=64, height=32)
AS_STORED = {1: "RGBW", 2: "GRWB", 3: "BWRG", 4: "WBGR", 5: "RWBG", 6: "WRGB", 7: "BGRW", 8: "GBWR"}
"""What a viewer shows of `UPRIGHT` under each EXIF orientation, clockwise from the left upper corner."""


def only(prepared: list[PreparedMedia]) -> PreparedPicture:
    (picture,) = prepared
    assert isinstance(picture, PreparedPicture)
    return picture


def png(pixels: NDArray[np.uint16], *, colour_type: int, coding: tuple[int, ...] = ()) -> bytes:
    """Write a PNG of 16 bits, with a cICP chunk where `coding` is given; Pillow writes neither."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, colour_type, 0, 0, 0)
    cicp = chunk(b"cICP", bytes(coding)) if coding else b""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + cicp
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif", "avif", "heic"])
def test_a_picture_is_turned_upright_once(prepare: Prepare, tmp_path: Path, ending: str) -> None:
    for orientation, expected in AS_STORED.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"{orientation}.{ending}"
        if ending == "heic":
            pillow_heif.from_pillow(Image.fromarray(UPRIGHT)).save(path, exif=exif.tobytes())
        else:
            Image.fromarray(UPRIGHT).save(path, exif=exif if ending == "tif" else exif.tobytes())

        picture = only(prepare(path.name))

        sideways = orientation > 4
        assert picture.pixels.shape == ((64, 32, 3) if sideways else (32, 64, 3))
        assert own_media.corners(picture.pixels) == expected
        told = [f"Turned upright, as its EXIF orientation {orientation} says."] if orientation > 1 else []
        assert picture.changes == told


def test_saturated_colour_under_no_opacity_becomes_the_stated_background(
    prepare: Prepare, tmp_path: Path
) -> None:
    pixels = np.dstack(
        [own_media.colour(width=64, height=32, rgb=(255, 0, 200)), np.zeros((32, 64), np.uint8)]
    )
    pixels[:, 32:, 3] = 128
    own_media.write_picture(tmp_path / "cut_out.png", pixels)

    picture = only(prepare("cut_out.png"))

    assert picture.pixels[0, 0].tolist() == [255, 255, 255]
    assert picture.pixels[0, 63].tolist() == [255, 127, 227]
    assert picture.changes == ["Its transparent parts were laid over white."]


@pytest.mark.parametrize("mode", ["P", "LA", "L"])
def test_transparency_of_every_kind_is_seen(prepare: Prepare, tmp_path: Path, mode: str) -> None:
    image = Image.new(mode, (64, 32), (0, 0) if mode == "LA" else 0)
    image.save(tmp_path / "a.png", **({} if mode == "LA" else {"transparency": 0}))

    assert only(prepare("a.png")).pixels.min() == 255


def test_one_clear_level_of_16_bit_grey_is_seen(prepare: Prepare, tmp_path: Path) -> None:
    levels = np.zeros((32, 64), np.uint16)
    levels[:, 32:] = 40_000
    Image.fromarray(levels).save(tmp_path / "a.png", transparency=40_000)

    pixels = only(prepare("a.png")).pixels

    assert (pixels[0, 0].tolist(), pixels[0, 63].tolist()) == ([0, 0, 0], [255, 255, 255])


def test_an_opaque_alpha_channel_changes_nothing(prepare: Prepare, tmp_path: Path) -> None:
    own_media.write_picture(tmp_path / "a.png", np.dstack([UPRIGHT, np.full((32, 64), 255, np.uint8)]))

    picture = only(prepare("a.png"))

    assert np.array_equal(picture.pixels, UPRIGHT)
    assert picture.changes == []


def test_grey_palette_and_bilevel_become_rgb(prepare: Prepare, tmp_path: Path) -> None:
    image = Image.fromarray(UPRIGHT)
    image.quantize(8).save(tmp_path / "p.png")
    image.convert("L").save(tmp_path / "l.png")
    image.convert("1").save(tmp_path / "b.bmp")

    palette, grey, bilevel = (only(prepare(name)) for name in ("p.png", "l.png", "b.bmp"))

    assert own_media.corners(palette.pixels) == "RGBW"
    assert np.array_equal(grey.pixels[..., 0], np.asarray(image.convert("L")))
    assert set(np.unique(bilevel.pixels)) == {0, 255}


def test_sixteen_bits_keep_their_upper_eight(prepare: Prepare, tmp_path: Path) -> None:
    deep = UPRIGHT.astype(np.uint16) * 256 + 99
    (tmp_path / "rgb.png").write_bytes(png(deep, colour_type=2))
    Image.fromarray(deep[..., 0]).save(tmp_path / "grey.png")
    Image.fromarray(deep[..., 0]).save(tmp_path / "grey.tif")

    colour, *greys = (only(prepare(name)) for name in ("rgb.png", "grey.png", "grey.tif"))

    assert np.array_equal(colour.pixels, UPRIGHT)
    assert colour.changes == ["Its 16 bits per channel were reduced to 8."]
    for grey in greys:
        assert np.array_equal(grey.pixels, UPRIGHT[..., :1].repeat(3, 2))
        assert grey.changes == ["Its 16-bit grey was reduced to 8 bits."]


@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png", "a.tif"])
def test_the_first_of_several_pictures_is_used_and_that_is_said(
    prepare: Prepare, tmp_path: Path, name: str
) -> None:
    first, second = Image.fromarray(UPRIGHT), Image.fromarray(UPRIGHT[::-1].copy())
    first.save(tmp_path / name, save_all=True, append_images=[second, second])

    picture = only(prepare(name))

    assert own_media.corners(picture.pixels) == "RGBW"
    assert picture.changes == ["It holds several pictures; only the first is used."]


def coded(level: float) -> NDArray[np.uint16]:
    return np.full((64, 64, 3), round(level * 65_535), np.uint16)


def write_hdr(path: Path, *, transfer: int, level: float) -> Path:
    """Write a flat picture whose values are `level` of full scale, in BT.2020 with PQ (16) or HLG (18)."""
    if path.suffix == ".png":
        path.write_bytes(png(coded(level), colour_type=2, coding=(9, transfer, 0, 1)))
    elif path.suffix == ".heic":
        heif = pillow_heif.from_bytes(mode="RGB;16", size=(64, 64), data=coded(level).tobytes())
        tags = {"color_primaries": 9, "transfer_characteristics": transfer, "matrix_coefficients": 9}
        heif.save(path, quality=95, full_range_flag=1, **tags)
    else:
        flat = av.VideoFrame.from_ndarray(coded(level), format="rgb48le")
        planes = flat.reformat(format="yuv420p10le", dst_colorspace=9, dst_color_range=2, src_color_range=2)
        colours = {"color_trc": transfer, "color_primaries": 9, "colorspace": 9, "color_range": 2}
        own_media.write_clip(
            path,
            [planes.to_ndarray()],
            codec="libsvtav1",
            pix_fmt="yuv420p10le",
            colours=colours,
            format="avif",
        )
    return path


@pytest.mark.parametrize("name", ["a.png", "a.heic", "a.avif"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param((16, 0.581, 240), id="PQ at 203 nits"),
        pytest.param((16, 0.440, 136), id="PQ at 50 nits"),
        pytest.param((16, 0.903, 255), id="PQ at 4000 nits"),
        pytest.param((18, 0.75, 241), id="HLG's reference white"),
        pytest.param((18, 0.50, 137), id="HLG in the middle"),
    ],
)
def test_hdr_becomes_srgb_by_the_one_rule(
    prepare: Prepare, tmp_path: Path, name: str, case: tuple[int, float, int]
) -> None:
    transfer, level, expected = case
    write_hdr(tmp_path / name, transfer=transfer, level=level)

    picture = only(prepare(name))

    assert np.abs(picture.pixels.astype(int) - expected).max() <= 3
    name_of = {16: "PQ", 18: "HLG"}[transfer]
    assert picture.changes[0].startswith(f"HDR ({name_of}) was converted to sRGB: 203 nits became white")
