"""A picture file into upright 8-bit sRGB: sniffed, its header held to the limits, then decoded once.

Pillow reads every form but two kinds of HDR: PQ or HLG in HEIC goes through libheif in 16 bits, in AVIF and
PNG through libav, since Pillow gives those in 8. Every decoder is named, so no other one is tried.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import pillow_heif
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngImageFile
from pillow_heif.as_plugin import HeifImageFile

from media.colours import to_srgb
from media.errors import ReferenceUnreadableError
from media.hdr import (
    HDR_RULE,
    HLG,
    PQ,
    PRIMARIES_NAMES,
    TRANSFER_NAMES,
    hdr_to_srgb,
    is_wide,
    wide_to_srgb,
)
from media.picture_headers import Coding, check_markers, coding_of
from media.sniff import AVIF, HEIF, JPEG, PNG, TIFF, FileForm
from media.stills import decode_still
from queue_schemas import limits

_ORIENTATION: Final = 0x0112
_FAULTS: Final = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    RuntimeError,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
    MemoryError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureHeader:
    """What a picture's header tells; sizes are upright."""

    width: int
    height: int
    many: bool
    """Whether it holds further pictures: an animation, or a series."""
    coding: Coding


def read_header(path: Path, form: FileForm) -> PictureHeader:
    """Read size and coding without decoding. Raises ReferenceUnreadableError."""
    with path.open("rb") as file, _open(file, form) as image:
        return _header(image, file, form)


def read_picture(path: Path, form: FileForm) -> tuple[Image.Image, list[str]]:
    """Decode into mode RGB, upright, sRGB; say what was changed. Raises ReferenceUnreadableError."""
    with path.open("rb") as file, _open(file, form) as image:
        header = _header(image, file, form)
        changes = ["It holds several pictures; only the first is used."] if header.many else []
        if header.coding.transfer in (PQ, HLG) and form in (HEIF, AVIF, PNG):
            upright, more = _from_hdr(image, path, form, header.coding)
        else:
            upright, more = _from_sdr(image, header.coding)
        return upright, changes + more


@contextmanager
def _open(file: BinaryIO, form: FileForm) -> Iterator[Image.Image]:
    """Open with the one decoder of this form; whatever it raises, then or later, becomes our error."""
    try:
        if form is JPEG:
            check_markers(file)
        yield HeifImageFile(file) if form is HEIF else Image.open(file, formats=[form.reader])
    except ReferenceUnreadableError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        found = re.search(r"\((\d+) pixels\)", str(error))
        raise _too_many_pixels(f"{int(found[1]):,}" if found else "far more") from error
    except _FAULTS as error:
        raise ReferenceUnreadableError(
            f"{form.name} that cannot be decoded: {_said(error)}; save it anew as PNG or JPEG"
        ) from error


def _said(error: BaseException) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "its header is damaged"
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _too_many_pixels(found: str) -> ReferenceUnreadableError:
    return ReferenceUnreadableError(
        f"it has {found} pixels; at most {limits.IMAGE_PIXELS:,} are read; shrink it"
    )


def _header(image: Image.Image, file: BinaryIO, form: FileForm) -> PictureHeader:
    width, height = image.size
    if width * height > limits.IMAGE_PIXELS:
        raise _too_many_pixels(f"{width}x{height} = {width * height:,}")
    if not width or not height:
        raise ReferenceUnreadableError(f"it has {width}x{height} pixels; give a picture with some")
    if form is not TIFF and _orientation_before(image) in _SIDEWAYS:  # Pillow has turned a TIFF's size
        width, height = height, width
    return PictureHeader(
        width=width,
        height=height,
        many=image.is_animated if hasattr(image, "is_animated") else False,
        coding=coding_of(image, file, form),
    )


def _orientation_before(image: Image.Image) -> int:
    """Return the EXIF orientation as far as the header tells; a PNG may say it behind its pixels."""
    if isinstance(image, PngImageFile) and "exif" not in image.info:
        return 1  # `getexif` would decode it to find out
    return _orientation(image)


def _orientation(image: Image.Image) -> int:
    return int(image.getexif().get(_ORIENTATION, 1))


def _from_sdr(image: Image.Image, coding: Coding) -> tuple[Image.Image, list[str]]:
    before = image.info.get("original_orientation") or _orientation_before(image)
    image.load()
    changes: list[str] = []
    if coding.bits > 8 and image.mode in ("RGB", "RGBA", "LA"):
        changes.append(f"Its {coding.bits} bits per channel were reduced to 8.")
    upright, turned = _turned(image, _orientation(image))
    if not turned and before in _METHODS:
        turned = [_turned_sentence(before)]  # Pillow turns a TIFF as it loads, libheif a HEIC
    rgb, coloured = to_srgb(upright)
    if is_wide(coding.primaries) and not image.info.get("icc_profile"):
        rgb = Image.fromarray(wide_to_srgb(np.asarray(rgb), primaries=coding.primaries))
        coloured.append(f"Its colours were converted to sRGB from {PRIMARIES_NAMES[coding.primaries]}.")
    return rgb, changes + turned + coloured


def _from_hdr(
    image: Image.Image, path: Path, form: FileForm, coding: Coding
) -> tuple[Image.Image, list[str]]:
    pixels = _heif_16(path) if form is HEIF else decode_still(path, form)
    rgb = Image.fromarray(hdr_to_srgb(pixels, transfer=coding.transfer, primaries=coding.primaries))
    changes = [f"HDR ({TRANSFER_NAMES[coding.transfer]}) was converted to sRGB: {HDR_RULE}."]
    upright, turned = _turned(rgb, _orientation(image))  # 1 for a HEIC, which libheif has turned
    return upright, changes + turned


def _turned(image: Image.Image, orientation: int) -> tuple[Image.Image, list[str]]:
    method = _METHODS.get(orientation)
    if method is None:
        return image, []
    turned = image.transpose(method)
    turned.info = dict(image.info)
    return turned, [_turned_sentence(orientation)]


def _turned_sentence(orientation: int) -> str:
    return f"Turned upright, as its EXIF orientation {orientation} says."


_METHODS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


_SIDEWAYS: Final = (5, 6, 7, 8)


def _heif_16(path: Path) -> NDArray[np.uint16]:
    """Decode a HEIC's first picture to full-range 16-bit RGB [H, W, 3]."""
    heif = pillow_heif.open_heif(path, convert_hdr_to_8bit=False, hdr_to_16bit=True)
    pixels = np.asarray(heif)
    if pixels.dtype != np.uint16:
        pixels = pixels.astype(np.uint16) * 257
    return pixels[..., :3]
