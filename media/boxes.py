"""What an mp4's index claims, read before libav builds tables by it.

A sample table says in a few bytes that a track has a billion samples of one size, an edit list that each is
played a thousand times, and libav allocates by both. So every count is added up here first. Only boxes on the
way to those counts are entered; whatever is malformed otherwise is left for libav to refuse.

Source: ISO/IEC 14496-12.
"""

from dataclasses import dataclass, field
from typing import BinaryIO, Final

from media.errors import ReferenceUnreadableError
from queue_schemas import limits

_CONTAINERS: Final = {b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"moof", b"traf"}
_RUNS: Final = {b"stts", b"ctts"}
"""Tables of (count, value)."""
_RUN_BYTES: Final = 16 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class _Claims:
    boxes: int = 0
    has_index: bool = False
    tracks: int = 0
    samples: int = 0
    edits: int = 0
    matrices: dict[int, list[int]] = field(default_factory=dict)


def check_boxes(file: BinaryIO, *, size_bytes: int) -> dict[int, list[int]]:
    """Return each track's display matrix (9 numbers) by the track's id.

    Raises ReferenceUnreadableError where the index of an mp4 claims more than a reference can have.
    """
    claims = _Claims()
    _walk(file, 0, size_bytes, claims)
    if not claims.has_index:
        raise ReferenceUnreadableError(
            "its index is missing: it is cut off or was never finished; make it anew"
        )
    return claims.matrices


def _walk(file: BinaryIO, start: int, end: int, claims: _Claims) -> None:
    while start + 8 <= end:
        claims.boxes += 1
        if claims.boxes > limits.MEDIA_BOXES:
            raise ReferenceUnreadableError(f"it has more than {limits.MEDIA_BOXES:,} boxes; write it anew")
        file.seek(start)
        header = file.read(16)
        length, name, body = int.from_bytes(header[:4]), header[4:8], start + 8
        if length == 1:
            length, body = int.from_bytes(header[8:16]), start + 16
        elif length == 0:
            length = end - start
        stop = min(start + length, end)
        if length < body - start:
            return
        claims.has_index |= name in (b"moov", b"meta")  # of a film; of an AVIF
        if name in _CONTAINERS:
            if name == b"trak":
                _count_track(claims)
            _walk(file, body, stop, claims)
        else:
            _count(file, name, body, stop, claims)
        start += length


def _count_track(claims: _Claims) -> None:
    claims.tracks += 1
    if claims.tracks > limits.MEDIA_STREAMS:
        raise ReferenceUnreadableError(
            f"it has more than {limits.MEDIA_STREAMS} tracks; keep one of pictures and one of sound"
        )


def _count(file: BinaryIO, name: bytes, body: int, stop: int, claims: _Claims) -> None:
    if name == b"tkhd":
        _note_matrix(file, body, claims)
    if name == b"cmov":
        raise ReferenceUnreadableError("its index is compressed, which is not read; write it anew")
    if name not in _RUNS and name not in (b"stsz", b"stz2", b"trun", b"elst"):
        return
    file.seek(body)
    head = file.read(12)
    if name in (b"stsz", b"stz2"):
        claimed = int.from_bytes(head[8:12])
    elif name in _RUNS:
        file.seek(body + 8)
        table = file.read(max(0, min(stop - body - 8, _RUN_BYTES)))
        claimed = sum(int.from_bytes(table[at : at + 4]) for at in range(0, len(table) - 7, 8))
    else:
        claimed = int.from_bytes(head[4:8])
    if name == b"elst" and claimed > limits.MEDIA_EDITS:
        raise ReferenceUnreadableError(
            f"its edit list has {claimed:,} entries; at most {limits.MEDIA_EDITS} are read; write it anew"
        )
    if name != b"elst" and claimed > limits.MEDIA_SAMPLES:
        raise _too_many(claimed)
    if name in (b"stsz", b"stz2", b"trun"):
        claims.samples += claimed
    if name == b"elst":
        claims.edits = max(claims.edits, claimed)
    repeats = max(1, claims.edits - 2)  # a delay and the film itself are two entries of every other file
    if claims.samples * repeats > limits.MEDIA_SAMPLES:
        raise _too_many(claims.samples * repeats)


def _note_matrix(file: BinaryIO, body: int, claims: _Claims) -> None:
    file.seek(body)
    data = file.read(88)
    id_at, matrix_at = (20, 52) if data[:1] == b"\1" else (12, 40)
    track = int.from_bytes(data[id_at : id_at + 4])
    places = range(matrix_at, matrix_at + 36, 4)
    claims.matrices[track] = [int.from_bytes(data[at : at + 4], signed=True) for at in places]


def _too_many(claimed: int) -> ReferenceUnreadableError:
    return ReferenceUnreadableError(
        f"its index claims {claimed:,} frames and blocks of sound; at most {limits.MEDIA_SAMPLES:,} are read;"
        " give a shorter file"
    )
