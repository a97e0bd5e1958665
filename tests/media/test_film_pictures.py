"""Pictures through the encoder and back."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext
from av.codec import CodecContext
from numpy.typing import NDArray

from media.encode import encode_mp4
from queue_schemas.geometry import track_samples

BT709, LIMITED = 1, 1
PRIMARIES = list(itertools.product((0, 255), repeat=3))
DARKER = list(itertools.product((16, 191), repeat=3))
GREYS = [(level, level, level) for level in (0, 16, 64, 128, 200, 235, 254, 255)]


@pytest.mark.parametrize(("width", "height"), [(864, 64), (960, 544), (256, 256)])
def test_colour_bars_come_back_within_two_levels(tmp_path: Path, width: int, height: int) -> None:
    for colours in (PRIMARIES, DARKER, GREYS):
        bar = np.arange(width) * len(colours) // width  # [W]
        frames = np.broadcast_to(np.array(colours, np.uint8)[bar], (5, height, width, 3))

        encode_mp4(tmp_path / "bars.mp4", frames=[frames], waveform=silence(5), sample_rate_hz=32_000)

        with av.open(str(tmp_path / "bars.mp4")) as film:
            pictures = [to_rgb(picture) for picture in film.decode(video=0)]
        flat = (
            np.abs(np.arange(width) * len(colours) / width - bar - 0.5) < 0.25
        )  # the middle half of each bar
        assert len(pictures) == 5
        assert max(np.abs(picture - frames[0])[8:-8, flat].max() for picture in pictures) <= 2


def test_a_red_edge_sits_where_h264_places_chroma(tmp_path: Path) -> None:
    frames = np.zeros((5, 64, 64, 3), np.uint8)
    frames[:, :, 32:] = (200, 0, 0)

    encode_mp4(tmp_path / "edge.mp4", frames=[frames], waveform=silence(5), sample_rate_hz=32_000)

    with av.open(str(tmp_path / "edge.mp4")) as film:
        chroma = next(film.decode(video=0)).to_ndarray()[80:].reshape(32, 32).astype(int)  # V: [H/2, W/2]
    # A sample on the left pixel of its pair, the first red one, takes 1/4 of the black pixel before it.
    black, red = chroma[16, 4], chroma[16, 28]
    assert abs(chroma[16, 16] - (0.25 * black + 0.75 * red)) <= 4
    assert abs(chroma[16, 15] - black) <= 4


def test_the_stream_itself_says_yuv420p_and_bt709_limited(write_film: Callable[..., Path]) -> None:
    decoder = CodecContext.create("h264", "r")  # has never seen the mp4's own colour box
    with av.open(str(write_film(22))) as film:
        to_annexb = BitStreamFilterContext("h264_mp4toannexb", film.streams.video[0])
        packets = [raw for packet in film.demux(video=0) for raw in to_annexb.filter(packet)]

    pictures = [picture for packet in packets for picture in decoder.decode(packet)]

    assert pictures[0].format.name == "yuv420p"
    assert (pictures[0].colorspace, pictures[0].color_range) == (BT709, LIMITED)
    assert (decoder.color_primaries, decoder.color_trc, decoder.colorspace) == (BT709, BT709, BT709)
    assert decoder.color_range == LIMITED
    assert decoder.profile == "High"


def test_the_container_says_avc1_and_bt709_limited(write_film: Callable[..., Path]) -> None:
    with av.open(str(write_film(22))) as film:
        context = film.streams.video[0].codec_context

        assert (context.codec_tag, context.pix_fmt) == ("avc1", "yuv420p")
        assert (context.color_primaries, context.color_trc, context.colorspace) == (BT709, BT709, BT709)
        assert context.color_range == LIMITED


def test_frame_k_is_shown_at_exactly_k_24ths(write_film: Callable[..., Path]) -> None:
    with av.open(str(write_film(39))) as film:
        times = [picture.pts * picture.time_base for picture in film.decode(video=0)]

    assert times == [Fraction(k, 24) for k in range(39)]


def test_frames_keep_their_order(tmp_path: Path) -> None:
    frames = np.empty((39, 32, 32, 3), np.uint8)
    frames[:] = (np.arange(39, dtype=np.uint8) * 6)[:, None, None, None]

    encode_mp4(tmp_path / "steps.mp4", frames=[frames], waveform=silence(39), sample_rate_hz=32_000)

    with av.open(str(tmp_path / "steps.mp4")) as film:
        greys = np.array([p.to_ndarray(format="rgb24").mean() for p in film.decode(video=0)])
    assert np.abs(greys - np.arange(39) * 6).max() <= 2


def to_rgb(picture: av.VideoFrame) -> NDArray[np.float64]:
    """Convert yuv420p to RGB [H, W, 3] by the bt709 limited-range formula of H.273.

    Not by `to_ndarray("rgb24")`: PyAV 15 takes bt601 for it whatever the frame says, and swscale's fast path
    is up to 3 levels dark even for a lossless film.
    """
    height, width = picture.height, picture.width
    planes = picture.to_ndarray().astype(float)  # [3 H / 2, W]: Y, then U and V of half the size, packed
    chroma = planes[height:].reshape(2, height // 2, width // 2).repeat(2, axis=1).repeat(2, axis=2)
    luma, blue, red = (planes[:height] - 16) / 219, (chroma[0] - 128) / 224, (chroma[1] - 128) / 224
    r, b = luma + 1.5748 * red, luma + 1.8556 * blue
    g = (luma - 0.2126 * r - 0.0722 * b) / 0.7152
    return np.clip(np.stack([r, g, b], axis=-1) * 255, 0, 255).round()


def silence(frames: int) -> NDArray[np.float32]:
    return np.zeros((2, track_samples(frames)), np.float32)
