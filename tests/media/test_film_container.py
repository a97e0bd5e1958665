"""The boxes of the mp4 itself, parsed here, so that no demuxer's kindness hides a fault."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from queue_schemas.geometry import track_samples

FRAME_COUNTS = (5, 22, 39, 124)
PRIMING = 1024
# Bytes before the first child box, for the boxes that have children.
HEADERS = {
    "moov": 0,
    "trak": 0,
    "edts": 0,
    "mdia": 0,
    "minf": 0,
    "stbl": 0,
    "stsd": 8,
    "avc1": 78,
    "mp4a": 28,
}


def boxes(data: bytes, path: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield (path, payload) of every box, tracks named by their order: `moov/trak0/tkhd`."""
    offset, tracks = 0, 0
    while offset < len(data):
        size, kind = struct.unpack(">I4s", data[offset : offset + 8])
        name, payload = kind.decode("latin-1"), data[offset + 8 : offset + size]
        assert size >= 8
        offset += size
        label = f"{name}{tracks}" if name == "trak" else name
        tracks += name == "trak"
        here = f"{path}/{label}" if path else label
        yield here, payload
        if name in HEADERS:
            yield from boxes(payload[HEADERS[name] :], here)


def words(payload: bytes, count: int, skip: int = 4) -> tuple[int, ...]:
    """Read big-endian 32-bit words after version and flags."""
    return struct.unpack(f">{count}I", payload[skip : skip + 4 * count])


def test_the_index_lies_before_the_media_so_that_a_browser_can_start_at_once(
    write_film: Callable[..., Path],
) -> None:
    path = write_film(22)

    order = [name for name, _ in boxes(path.read_bytes()) if "/" not in name]

    assert order.index("moov") < order.index("mdat")


def test_pictures_are_avc1_with_bt709_limited_in_the_colour_box(write_film: Callable[..., Path]) -> None:
    found = dict(boxes(write_film(5).read_bytes()))

    colour = found["moov/trak0/mdia/minf/stbl/stsd/avc1/colr"]

    assert "moov/trak0/mdia/minf/stbl/stsd/avc1/avcC" in found
    assert colour == b"nclx" + struct.pack(">HHHB", 1, 1, 1, 0)  # the last byte's top bit would be full range


@pytest.mark.parametrize("frames", FRAME_COUNTS)
def test_every_duration_in_the_boxes_is_exact(write_film: Callable[..., Path], frames: int) -> None:
    samples = track_samples(frames)

    found = dict(boxes(write_film(frames).read_bytes()))

    scale, length = words(found["moov/mvhd"], 2, skip=12)
    video_length, audio_length = frames * scale // 24, samples * scale // 32_000
    assert scale == 96_000  # holds a frame and a sample exactly
    assert length == max(video_length, audio_length)
    for track, track_length in (("trak0", video_length), ("trak1", audio_length)):
        assert words(found[f"moov/{track}/tkhd"], 1, skip=20) == (track_length,)
        entries, segment = words(found[f"moov/{track}/edts/elst"], 2)
        assert (entries, segment) == (1, track_length)
    assert abs(audio_length / scale - frames / 24) <= 0.5 / 32_000


@pytest.mark.parametrize("frames", FRAME_COUNTS)
def test_frames_are_equally_long_and_the_first_is_shown_at_zero(
    write_film: Callable[..., Path], frames: int
) -> None:
    found = dict(boxes(write_film(frames).read_bytes()))

    scale, length = words(found["moov/trak0/mdia/mdhd"], 2, skip=12)
    table = found["moov/trak0/mdia/minf/stbl/stts"]
    media_time = words(found["moov/trak0/edts/elst"], 1, skip=12)[0]
    first_shown = words(found["moov/trak0/mdia/minf/stbl/ctts"], 1, skip=12)[0]
    assert words(table, 3) == (1, frames, scale // 24)
    assert length == frames * scale // 24
    assert media_time == first_shown


@pytest.mark.parametrize("frames", FRAME_COUNTS)
def test_sound_is_whole_blocks_of_which_the_edit_list_drops_the_lead_in(
    write_film: Callable[..., Path], frames: int
) -> None:
    samples = track_samples(frames)

    found = dict(boxes(write_film(frames).read_bytes()))

    scale, length = words(found["moov/trak1/mdia/mdhd"], 2, skip=12)
    entries, num_blocks, block = words(found["moov/trak1/mdia/minf/stbl/stts"], 3)
    media_time = words(found["moov/trak1/edts/elst"], 1, skip=12)[0]
    assert (scale, entries, block) == (32_000, 1, 1024)
    assert num_blocks * block == length
    assert length - media_time == samples
    assert PRIMING <= media_time < 2 * PRIMING
