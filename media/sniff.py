"""What a file is, by its first bytes: the end of its name is never believed.

Knows the forms that this package reads, and the names of some that people try. Knows nothing of what is
inside: a file that begins like an mp4 may hold pictures, sound, both or neither.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Final, Literal

from media.errors import ReferenceUnreadableError

_HEAD_BYTES = 4096
_TS_PACKET = 188
_ID3_TAGS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FileForm:
    """One form of file that is read."""

    name: str
    """As a sentence calls it, with its article."""
    family: Literal["picture", "stream"]
    reader: str
    """Pillow's name of the format, or the name of libav's demuxer."""
    endings: tuple[str, ...]


def _picture(name: str, reader: str, *endings: str) -> FileForm:
    return FileForm(name=name, family="picture", reader=reader, endings=endings)


def _stream(name: str, reader: str, *endings: str) -> FileForm:
    return FileForm(name=name, family="stream", reader=reader, endings=endings)


JPEG: Final = _picture("a JPEG picture", "JPEG", "jpg", "jpeg", "jpe", "jfif", "mpo")
PNG: Final = _picture("a PNG picture", "PNG", "png", "apng")
GIF: Final = _picture("a GIF picture", "GIF", "gif")
WEBP: Final = _picture("a WebP picture", "WEBP", "webp")
BMP: Final = _picture("a BMP picture", "BMP", "bmp", "dib")
TIFF: Final = _picture("a TIFF picture", "TIFF", "tif", "tiff", "dng")
HEIF: Final = _picture("a HEIF picture", "HEIF", "heic", "heif", "hif")
AVIF: Final = _picture("an AVIF picture", "AVIF", "avif")
MP4: Final = _stream("an MP4 or QuickTime file", "mov", "mp4", "mov", "m4v", "m4a", "m4b", "3gp", "3g2", "qt")
MATROSKA: Final = _stream("a Matroska or WebM file", "matroska", "mkv", "webm", "mka", "weba")
AVI: Final = _stream("an AVI file", "avi", "avi")
MPEG_TS: Final = _stream("an MPEG transport stream", "mpegts", "ts", "mts", "m2ts")
WAV: Final = _stream("a WAV file", "wav", "wav", "wave", "bwf")
FLAC: Final = _stream("a FLAC file", "flac", "flac")
OGG: Final = _stream("an Ogg file", "ogg", "ogg", "oga", "opus", "ogv")
MP3: Final = _stream("an MP3 file", "mp3", "mp3")
AAC: Final = _stream("an AAC stream", "aac", "aac", "adts")
AIFF: Final = _stream("an AIFF file", "aiff", "aif", "aiff", "aifc")
CAF: Final = _stream("a Core Audio file", "caf", "caf")
AMR: Final = _stream("an AMR file", "amr", "amr")
_PICTURES = (JPEG, PNG, GIF, WEBP, BMP, TIFF, HEIF, AVIF)
_STREAMS = (MP4, MATROSKA, AVI, MPEG_TS, WAV, FLAC, OGG, MP3, AAC, AIFF, CAF, AMR)
_KNOWN_ENDINGS: Final = frozenset(ending for form in _PICTURES + _STREAMS for ending in form.endings)

_PREFIXES: Final = (
    (b"\xff\xd8\xff", JPEG),
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"GIF87a", GIF),
    (b"GIF89a", GIF),
    (b"II*\0", TIFF),
    (b"MM\0*", TIFF),
    (b"II+\0", TIFF),
    (b"MM\0+", TIFF),
    (b"\x1aE\xdf\xa3", MATROSKA),
    (b"fLaC", FLAC),
    (b"OggS", OGG),
    (b"caff", CAF),
    (b"#!AMR", AMR),
)
_TYPED: Final = {
    (b"RIFF", b"WEBP"): WEBP,
    (b"RIFF", b"AVI "): AVI,
    (b"RIFF", b"WAVE"): WAV,
    (b"RF64", b"WAVE"): WAV,
    (b"FORM", b"AIFF"): AIFF,
    (b"FORM", b"AIFC"): AIFF,
}
_AVIF_BRANDS: Final = {b"avif", b"avis"}
_HEIF_BRANDS: Final = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1", b"heif"}
_MP4_BOXES: Final = {b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"}
_NOT_READ: Final = (
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"8BPS", "a Photoshop document"),
    (b"\xff\x0a", "a JPEG XL picture"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL picture"),
    (b"\0\0\0\x0cjP  ", "a JPEG 2000 picture"),
    (b"0&\xb2u\x8ef\xcf\x11", "a Windows Media file"),
    (b"FLV", "a Flash film"),
    (b"\0\0\x01\xba", "an MPEG programme stream"),
    (b"\x1f\x8b", "a gzip file"),
)
_REMEDY: Final = {
    "image": "give a PNG, JPEG, WebP, HEIC, AVIF, TIFF, BMP or GIF",
    "video": "give an MP4, MOV, WebM, MKV, AVI or TS",
    "audio": "give a WAV, FLAC, MP3, M4A, OGG or AIFF",
}


def sniff(file: BinaryIO, *, wanted: str) -> FileForm:
    """Return the form of an open file; `wanted` is the kind that it should be.

    Raises ReferenceUnreadableError for what is none, saying what it seems to be.
    """
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    if not head:
        raise ReferenceUnreadableError(f"it is empty (0 bytes); {_REMEDY[wanted]}")
    form = _form(head, file)
    if form is None:
        raise ReferenceUnreadableError(f"it is no medium that is read, but {_guess(head)}; {_REMEDY[wanted]}")
    return form


def ending_change(name: str, form: FileForm) -> list[str]:
    """Return a sentence where the end of the file's name belongs to another known form."""
    ending = PurePosixPath(name).suffix.removeprefix(".").lower()
    if ending in form.endings or ending not in _KNOWN_ENDINGS:
        return []
    return [f"The name ends in .{ending}, but the file is {form.name} and was read as that."]


def _form(head: bytes, file: BinaryIO) -> FileForm | None:
    by_start = next((form for prefix, form in _PREFIXES if head.startswith(prefix)), None)
    by_start = by_start or _TYPED.get((head[:4], head[8:12]))
    if by_start is not None:
        return by_start
    if head[4:8] in _MP4_BOXES:
        return _by_brand(head) if head[4:8] == b"ftyp" else MP4
    if head.startswith(b"BM") and head[6:10] == bytes(4):
        return BMP
    if len(head) > 2 * _TS_PACKET and all(head[n * _TS_PACKET] == 0x47 for n in range(3)):
        return MPEG_TS
    after_id3(file)
    return _by_sync(file.read(4))


def _by_brand(head: bytes) -> FileForm:
    length = min(int.from_bytes(head[:4]), len(head))
    major, brands = head[8:12], {head[at : at + 4] for at in range(8, length - 3, 4)}
    if major in _AVIF_BRANDS:
        return AVIF
    if major in _HEIF_BRANDS:
        return AVIF if brands & _AVIF_BRANDS else HEIF
    return MP4


def after_id3(file: BinaryIO) -> None:
    """Move to where sound begins, past tags of MP3's kind; some programs leave several."""
    at = 0
    for _ in range(_ID3_TAGS):
        file.seek(at)
        head = file.read(10)
        if not head.startswith(b"ID3") or len(head) < 10:
            break
        at += 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True))
    file.seek(at)


def _by_sync(sync: bytes) -> FileForm | None:
    if sync == b"fLaC":
        return FLAC
    if len(sync) < 4 or sync[0] != 0xFF or sync[1] & 0xE0 != 0xE0:
        return None
    if sync[1] & 0xF6 == 0xF0:
        return AAC
    layer, bitrate, rate = sync[1] >> 1 & 3, sync[2] >> 4, sync[2] >> 2 & 3
    return MP3 if layer != 0 and bitrate != 15 and rate != 3 else None


def _guess(head: bytes) -> str:
    for prefix, name in _NOT_READ:
        if head.startswith(prefix):
            return name
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:512].lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "an HTML page, as a failed download leaves"
    if b"<svg" in start:
        return "an SVG drawing"
    if start.startswith(b"#extm3u"):
        return "a playlist"
    if all(byte >= 32 or byte in b"\t\n\r\f" for byte in head):
        return "text"
    return "bytes of no known kind"
