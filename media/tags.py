"""How many texts a file's tags hold, counted before libav reads them.

libav keeps tags in a list that it searches for each new one: 120,000 of them, a megabyte, take minutes, and
no limit of time stops it where it has them all in memory first. Such tags are counted here: comments of FLAC
and Ogg, where each text has a `=`; ID3 and Matroska, by the name or number that a text begins with (50 MiB
hold Matroska's two bytes 800 times by chance).
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import BinaryIO, Final

from media.errors import ReferenceUnreadableError
from media.sniff import AAC, AIFF, FLAC, MATROSKA, MP3, OGG, WAV, FileForm, after_id3
from queue_schemas import limits

_ID3_NAMES: Final = (b"TXX", b"PRIV")
"""Of texts that may be named by whoever writes them; the others are few."""
_NAMES: Final = {form: _ID3_NAMES for form in (MP3, AAC, WAV, AIFF, FLAC)} | {MATROSKA: (b"\x45\xa3",)}
_PART_BYTES: Final = 1024 * 1024
_COMMENT_BLOCK: Final = 4
_SMALL_PACKET: Final = 64 * 1024
"""A comment of that size has too few texts to matter; packets of sound are smaller."""


def check_tags(file: BinaryIO, form: FileForm) -> None:
    """Raise ReferenceUnreadableError for more texts than a reference can have."""
    found = _names(file, _NAMES[form]) if form in _NAMES else 0
    if form is FLAC:
        found += sum(block.count(b"=") for block in _flac_comments(file))
    if form is OGG:
        found += sum(packet.count(b"=") for packet in _large_packets(file))
    if found > limits.MEDIA_TAGS:
        raise ReferenceUnreadableError(
            f"its tags hold {found:,} texts; at most {limits.MEDIA_TAGS:,} are read;"
            " write it anew without them"
        )


def _names(file: BinaryIO, names: tuple[bytes, ...]) -> int:
    file.seek(0)
    found = 0
    while part := file.read(_PART_BYTES):
        found += sum(part.count(name) for name in names)
    return found


def _flac_comments(file: BinaryIO) -> Iterator[bytes]:
    after_id3(file)
    file.seek(4, 1)
    is_last = False
    while not is_last and len(header := file.read(4)) == 4:
        is_last, length = bool(header[0] & 0x80), int.from_bytes(header[1:])
        if header[0] & 0x7F == _COMMENT_BLOCK:
            yield file.read(length)
        else:
            file.seek(length, 1)


def _large_packets(file: BinaryIO) -> Iterator[bytes]:
    """Put together what lies on several pages, stream by stream."""
    file.seek(0)
    open_packets: defaultdict[bytes, bytearray] = defaultdict(bytearray)
    while len(header := file.read(27)) == 27 and header.startswith(b"OggS"):
        packet = open_packets[header[14:18]]
        lengths = file.read(header[26])
        for length in lengths:
            packet += file.read(length)
            if length < 255:
                if len(packet) > _SMALL_PACKET:
                    yield bytes(packet)
                packet.clear()
    yield from (bytes(packet) for packet in open_packets.values() if len(packet) > _SMALL_PACKET)
