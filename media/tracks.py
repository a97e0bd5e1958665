"""The two tracks of a film: H.264 pictures and AAC sound, each encoding into one open mp4.

The one thing to know is the sound's lead-in. AAC codes whole blocks of 1024 samples after 1024 samples of
priming, and a player learns what to leave out from the track's edit list, which libav's own demuxer applies
at the start only: a padded last block would be played to its end. So the padding goes in front, where it is
skipped with the priming: silence fills the samples up to whole blocks, counted in negative time, and the edit
list drops it. The first sample of the waveform plays at 0 and the track ends with its last. A player that
ignores edit lists is 32 to 64 ms late.

Knows nothing about files, names or lengths that belong together.

Shapes: H, W picture height and width; N samples per channel.
"""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Final

import av
import av.filter
import numpy as np
from av.container import OutputContainer
from numpy.typing import NDArray

VIDEO_CODEC: Final = "libx264"
AUDIO_CODEC: Final = "aac"
CRF = 16
PRESET = "veryfast"
"""Within 0.1 dB and 8 % in size of `fast` on grainy 1280 × 720 frames at crf 17, for half the time."""
CHROMA_QP_OFFSET = -6
"""Chroma finer than luma, because one level of it is two of blue: flat colours then stay within 2 levels."""
ENCODER_THREADS = 8
"""A fixed number: x264's output depends on it, so one that follows the machine would change the bytes."""
SECONDS_BETWEEN_KEYFRAMES = 2
AUDIO_BITS_PER_SECOND = 192_000
AAC_BLOCK_SAMPLES = 1024
AAC_RATES_HZ = (96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000)
BT709 = 1
"""The same code point in H.273's tables of primaries, transfer and matrix."""
LIMITED_RANGE = 1
"""libavutil's AVCOL_RANGE_MPEG."""

# H.264 puts chroma at the left, between the two rows, unless a stream says otherwise; swscale's own default
# is the centre of the 2 × 2 pixels, and its default matrix bt601.
_TO_YUV = (
    "out_color_matrix=bt709:out_range=tv:flags=bilinear+accurate_rnd+full_chroma_inp"
    ":out_h_chr_pos=0:out_v_chr_pos=128"
)


class VideoTrack:
    """H.264, yuv420p, bt709 limited range, constant frame rate; takes RGB frames one by one."""

    def __init__(self, container: OutputContainer, *, width: int, height: int, fps: int) -> None:
        options = {
            "preset": PRESET,
            "crf": str(CRF),
            "profile": "high",
            "threads": str(ENCODER_THREADS),
            # mbtree: with it x264 gave other bytes from one encode to the next in one process (AVX-512)
            "x264-params": f"chroma-qp-offset={CHROMA_QP_OFFSET}:mbtree=0",
        }
        stream = container.add_stream(VIDEO_CODEC, rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = Fraction(1, fps)
        context = stream.codec_context
        context.time_base = Fraction(1, fps)
        context.gop_size = SECONDS_BETWEEN_KEYFRAMES * fps
        context.color_primaries = context.color_trc = context.colorspace = BT709
        context.color_range = LIMITED_RANGE
        self._container, self._stream = container, stream
        self._time_base = Fraction(1, fps)
        self._to_yuv = _conversion(width=width, height=height, fps=fps)
        self.frames = 0

    def add(self, frame: NDArray[np.uint8]) -> None:
        """Encode one RGB frame [H, W, 3]."""
        self._to_yuv.push(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24"))
        picture = self._to_yuv.pull()
        assert isinstance(picture, av.VideoFrame)
        picture.pts, picture.time_base = self.frames, self._time_base
        self._container.mux(self._stream.encode(picture))
        self.frames += 1

    def finish(self) -> None:
        """Write what the encoder still holds."""
        self._container.mux(self._stream.encode(None))


class AudioTrack:
    """AAC stereo; owns the waveform [2, N] and how much of it is encoded."""

    def __init__(
        self, container: OutputContainer, waveform: NDArray[np.float32], *, sample_rate_hz: int
    ) -> None:
        stream = container.add_stream(AUDIO_CODEC, rate=sample_rate_hz, layout="stereo")
        stream.bit_rate = AUDIO_BITS_PER_SECOND
        stream.time_base = Fraction(1, sample_rate_hz)
        lead_in = -waveform.shape[1] % AAC_BLOCK_SAMPLES
        self._container, self._stream, self._rate = container, stream, sample_rate_hz
        self._samples = np.pad(waveform, ((0, 0), (lead_in, 0)))  # [2, a multiple of 1024]
        self._lead_in, self._encoded = lead_in, 0

    def fill(self, until_seconds: float) -> None:
        """Encode whole blocks until the sound reaches this time or its end."""
        self._encode(min(math.ceil(until_seconds * self._rate) + self._lead_in, self._samples.shape[1]))

    def finish(self) -> None:
        """Encode the rest and write what the encoder still holds."""
        self._encode(self._samples.shape[1])
        self._container.mux(self._stream.encode(None))

    def _encode(self, end: int) -> None:
        while self._encoded < end:
            block = self._samples[:, self._encoded : self._encoded + AAC_BLOCK_SAMPLES]
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(block), format="fltp", layout="stereo")
            frame.sample_rate, frame.time_base = self._rate, Fraction(1, self._rate)
            frame.pts = self._encoded - self._lead_in
            self._container.mux(self._stream.encode(frame))
            self._encoded += AAC_BLOCK_SAMPLES


def _conversion(*, width: int, height: int, fps: int) -> av.filter.Graph:
    """Build RGB -> yuv420p; a filter graph, because `VideoFrame.reformat` cannot place chroma."""
    graph = av.filter.Graph()
    nodes = [
        graph.add(
            "buffer",
            f"video_size={width}x{height}:pix_fmt=rgb24:time_base=1/{fps}:pixel_aspect=1/1"
            ":colorspace=gbr:range=pc",
        ),
        graph.add("scale", _TO_YUV),
        graph.add("format", "yuv420p"),
        graph.add("buffersink"),
    ]
    for source, sink in pairwise(nodes):
        source.link_to(sink)
    graph.configure()
    return graph
