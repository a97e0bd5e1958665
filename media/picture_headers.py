"""How a picture's values are coded, where Pillow does not tell: bits, transfer function, primaries.

Reads PNG chunks (IHDR, cICP) and the `colr` and `av1C` boxes of an AVIF; libheif tells for HEIC. A JPEG's
markers are only counted. Numbers are H.273's; 2 means that the file does not say.
"""

from dataclasses import dataclass
from typing import BinaryIO, Final

from PIL import Image

from media.errors import ReferenceUnreadableError
from media.sniff import AVIF, HEIF, PNG, TIFF, FileForm
from queue_schemas import limits

_UNSAID: Final = 2
_TIFF_BITS: Final = 258
_BOX_BYTES: Final = 256 * 1024
"""Of an AVIF's beginning, in which its properties lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """Of a picture's values; the file's word for it."""

    bits: int = 8
    transfer: int = _UNSAID
    primaries: int = _UNSAID


def coding_of(image: Image.Image, file: BinaryIO, form: FileForm) -> Coding:
    """Return how an opened, not yet decoded picture is coded."""
    if form is PNG:
        return _of_png(file)
    if form is AVIF:
        return _of_avif(file)
    if form is HEIF:
        nclx = image.info.get("nclx_profile") or {}
        return Coding(
            bits=int(image.info.get("bit_depth") or 8),
            transfer=int(nclx.get("transfer_characteristics", _UNSAID)),
            primaries=int(nclx.get("color_primaries", _UNSAID)),
        )
    if form is TIFF:
        bits = getattr(image, "tag_v2", {}).get(_TIFF_BITS, (8,))
        return Coding(bits=max(bits) if isinstance(bits, tuple) else int(bits))
    return Coding()


def check_markers(file: BinaryIO) -> None:
    """Refuse a JPEG that begins with more than is read: Pillow takes junk and padding byte by byte."""
    file.seek(2)
    for _ in range(limits.MEDIA_BOXES):
        head = file.read(4)
        if len(head) < 4 or head[:2] in (b"\xff\xda", b"\xff\xd9"):  # pixels; the end
            break
        is_segment = head[0] == 0xFF and 0xC0 <= head[1] < 0xFF and not 0xD0 <= head[1] <= 0xD7
        file.seek(int.from_bytes(head[2:]) - 2 if is_segment else -3, 1)
    else:
        raise ReferenceUnreadableError(
            f"it has more than {limits.MEDIA_BOXES:,} markers or stray bytes before its pixels; save it anew"
        )
    file.seek(0)


def _of_png(file: BinaryIO) -> Coding:
    """Walk to the pixels."""
    place = file.tell()
    bits, transfer, primaries = 8, _UNSAID, _UNSAID
    at = 8
    for _ in range(limits.MEDIA_BOXES):
        file.seek(at)
        header = file.read(8)
        length, name = int.from_bytes(header[:4]), header[4:]
        if len(header) < 8 or name == b"IDAT":
            break
        if name == b"IHDR":
            bits = file.read(9)[8]
        elif name == b"cICP":
            primaries, transfer = file.read(2)
        at += 12 + length
    else:
        raise ReferenceUnreadableError(
            f"it has more than {limits.MEDIA_BOXES:,} chunks before its pixels; save it anew"
        )
    file.seek(place)
    return Coding(bits=bits, transfer=transfer, primaries=primaries)


def _of_avif(file: BinaryIO) -> Coding:
    place = file.tell()
    file.seek(0)
    head = file.read(_BOX_BYTES)
    file.seek(place)
    bits, transfer, primaries = 8, _UNSAID, _UNSAID
    colr, av1c = head.find(b"colrnclx"), head.find(b"av1C")
    if colr >= 0:
        primaries = int.from_bytes(head[colr + 8 : colr + 10])
        transfer = int.from_bytes(head[colr + 10 : colr + 12])
    if av1c >= 0 and len(head) > av1c + 6 and head[av1c + 6] & 0x40:
        bits = 12 if head[av1c + 6] & 0x20 else 10
    return Coding(bits=bits, transfer=transfer, primaries=primaries)
