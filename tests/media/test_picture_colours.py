"""ICC profiles and CMYK: followed where there is a profile, by a stated rule where there is none."""

import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import own_media
import pytest
from PIL import Image, ImageCms

from media.hdr import to_bt709
from media.prepared import PreparedMedia, PreparedPicture

Prepare = Callable[..., list[PreparedMedia]]


def fixed(value: float) -> bytes:
    return struct.pack(">i", round(value * 65_536))


def profile(*, space: bytes, connection: bytes, device: bytes, tags: dict[bytes, bytes]) -> bytes:
    """Build an ICC profile (version 2) of the tags given, with a name, a white point and a copyright."""
    text = b"text\0\0\0\0none\0"
    name = b"desc\0\0\0\0" + struct.pack(">I", 5) + b"made\0" + bytes(78)
    white = b"XYZ \0\0\0\0" + fixed(0.9642) + fixed(1.0) + fixed(0.8249)
    tags = {b"desc": name, b"cprt": text, b"wtpt": white, **tags}
    table, data = b"", b""
    start = 128 + 4 + 12 * len(tags)
    for key, value in tags.items():
        table += key + struct.pack(">II", start + len(data), len(value))
        data += value + bytes(-len(value) % 4)
    head = struct.pack(">I4sI4s4s4s", start + len(data), b"lcms", 0x02400000, device, space, connection)
    head += struct.pack(">6H", 2026, 1, 1, 0, 0, 0) + b"acsp" + bytes(28)
    head += fixed(0.9642) + fixed(1.0) + fixed(0.8249)
    return head + bytes(128 - len(head)) + struct.pack(">I", len(tags)) + table + data


def display_p3() -> bytes:
    """Display P3 with a gamma of 2.2, adapted to D50 by sRGB's own primaries."""
    srgb = np.array([[0.4361, 0.3851, 0.1431], [0.2225, 0.7169, 0.0606], [0.0139, 0.0971, 0.7141]])
    columns = srgb @ to_bt709(12).astype(float)
    tags = {
        key: b"XYZ \0\0\0\0" + b"".join(fixed(value) for value in column)
        for key, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), columns.T, strict=True)
    }
    gamma = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(2.2 * 256))
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), gamma)
    return profile(space=b"RGB ", connection=b"XYZ ", device=b"mntr", tags=tags)


def swapped_inks() -> bytes:
    """A CMYK profile whose first ink is yellow and whose third is cyan, as no rule without it would guess.

    A lut8 of 2^4 points in Lab; the paper is L 100, each ink multiplies the light that is left.
    """
    inks = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]])  # of linear RGB
    points = b""
    to_lab = ImageCms.buildTransform(
        ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), "RGB", "LAB"
    )
    for number in range(16):
        light = np.ones(3)
        for ink in range(4):
            if number >> (3 - ink) & 1:
                light *= inks[ink]
        pixel = Image.new("RGB", (1, 1), tuple(int(value) for value in light * 255))
        ls, a, b = np.asarray(ImageCms.applyTransform(pixel, to_lab))[0, 0].astype(int)
        points += bytes([int(ls), int(a) ^ 0x80, int(b) ^ 0x80])
    ramp = bytes(range(256))
    identity = b"".join(fixed(value) for value in np.eye(3).ravel())
    lut = b"mft1\0\0\0\0" + bytes([4, 3, 2, 0]) + identity + ramp * 4 + points + ramp * 3
    return profile(space=b"CMYK", connection=b"Lab ", device=b"prtr", tags={b"A2B0": lut})


def read(prepare: Prepare, name: str) -> PreparedPicture:
    (picture,) = prepare(name)
    assert isinstance(picture, PreparedPicture)
    return picture


def write_cmyk(path: Path, inks: tuple[int, int, int, int], icc: bytes | None = None) -> None:
    Image.new("CMYK", (64, 32), inks).save(path, quality=95, **({"icc_profile": icc} if icc else {}))


def test_cmyk_of_a_jpeg_goes_through_its_profile(prepare: Prepare, tmp_path: Path) -> None:
    write_cmyk(tmp_path / "print.jpg", (255, 0, 0, 0), swapped_inks())

    assert b"Adobe" in (tmp_path / "print.jpg").read_bytes()
    picture = read(prepare, "print.jpg")

    # yellow, as only the profile says
    assert picture.pixels[10, 10].tolist() == pytest.approx([255, 255, 0], abs=6)
    assert picture.changes == ["CMYK was converted to sRGB through its own profile."]


@pytest.mark.parametrize("icc", [None, b"no profile at all" * 20], ids=["no profile", "a broken one"])
def test_cmyk_without_a_profile_follows_the_stated_rule(
    prepare: Prepare, tmp_path: Path, icc: bytes | None
) -> None:
    write_cmyk(tmp_path / "print.jpg", (255, 51, 0, 64), icc)

    picture = read(prepare, "print.jpg")

    assert picture.pixels[10, 10].tolist() == pytest.approx([0, 0.8 * 191, 191], abs=2)
    assert (
        picture.changes[-1] == "CMYK without a usable profile was converted to sRGB as (1 - ink)(1 - black)."
    )


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_wide_colours_are_converted_by_their_profile(prepare: Prepare, tmp_path: Path, mode: str) -> None:
    flat = Image.new("RGB", (64, 32), (120, 200, 90))
    image = flat.quantize(2) if mode == "P" else flat.convert(mode)
    image.save(tmp_path / "phone.png", icc_profile=display_p3())

    picture = read(prepare, "phone.png")

    linear = (np.array([120, 200, 90]) / 255) ** 2.2
    expected = 255 * np.clip(to_bt709(12) @ linear, 0, 1) ** (1 / 2.2)
    assert picture.pixels[5, 5].tolist() == pytest.approx(expected.tolist(), abs=4)
    assert picture.changes == ["Its colours were converted to sRGB from its profile (made)."]


def test_srgbs_own_profile_changes_nothing(prepare: Prepare, tmp_path: Path) -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    pixels = own_media.quarters(width=64, height=32)
    own_media.write_picture(tmp_path / "a.png", pixels, icc_profile=srgb)

    picture = read(prepare, "a.png")

    assert np.array_equal(picture.pixels, pixels)
    assert picture.changes == []


@pytest.mark.parametrize("icc", [b"damaged" * 30, swapped_inks()], ids=["damaged", "of other colours"])
def test_a_profile_that_cannot_be_followed_is_left_out_and_said(
    prepare: Prepare, tmp_path: Path, icc: bytes
) -> None:
    pixels = own_media.quarters(width=64, height=32)
    own_media.write_picture(tmp_path / "a.png", pixels, icc_profile=icc)

    picture = read(prepare, "a.png")

    assert np.array_equal(picture.pixels, pixels)
    assert picture.changes == ["Its colour profile is damaged or not one of its colours, and was left out."]


def test_the_profiles_made_here_are_sound() -> None:
    for made in (display_p3(), swapped_inks()):
        assert ImageCms.getProfileDescription(ImageCms.ImageCmsProfile(io.BytesIO(made))).strip() == "made"
