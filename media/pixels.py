"""One decoded frame into upright RGB: matrix and range by its tags, rotation and mirroring by its container.

Where a frame names no matrix, BT.709 is taken from 720 lines on and BT.601 below, as players do; where it
names no range, the limited one. Transparent frames are laid over white. HDR comes out as 16 bits, still
coded.
"""

import threading
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import av
import numpy as np
from av.sidedata.sidedata import SideData
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter
from numpy.typing import NDArray

from media.colours import BACKGROUND
from media.errors import ReferenceUnreadableError
from media.hdr import HLG, PQ
from queue_schemas import limits

Pixels = NDArray[Any]
"""uint8 or uint16."""
_UNSAID: Final = 2
_BT709, _BT601 = 1, 6
_MATRICES: Final = (0, 1, 2, 4, 5, 6, 7, 9, 10)
"""Those that libswscale converts, by H.273's numbers."""
_HD_LINES: Final = 720
_FULL_RANGE: Final = 2
_EXACT: Final = Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP


@dataclass(frozen=True, slots=True)
class Turn:
    """How coded pixels become upright ones: transposed first, then mirrored."""

    transposed: bool = False
    mirrored_x: bool = False
    mirrored_y: bool = False

    def apply(self, pixels: Pixels) -> Pixels:
        """Turn [H, W, C]; a view."""
        turned = pixels.swapaxes(0, 1) if self.transposed else pixels
        return turned[:: -1 if self.mirrored_y else 1, :: -1 if self.mirrored_x else 1]

    def __str__(self) -> str:
        angle = {
            (False, True, True): "180 degrees",
            (True, True, False): "90 degrees clockwise",
            (True, False, True): "90 degrees anticlockwise",
        }.get((self.transposed, self.mirrored_x, self.mirrored_y))
        return f"turned by {angle}" if angle else "mirrored"


def turn_of(matrix: list[int]) -> Turn:
    """Return the quarter turn nearest to a display matrix, 9 numbers row by row as in ISO/IEC 14496-12."""
    a, b, c, d = matrix[0], matrix[1], matrix[3], matrix[4]
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return Turn(False, a < 0, d < 0)
    return Turn(True, c < 0, b < 0)


def turn_of_frame(frame: av.VideoFrame) -> Turn:
    """Return how a decoded frame must be turned."""
    side_data = frame.side_data.get("DISPLAYMATRIX")
    if not isinstance(side_data, SideData):
        return Turn()
    return turn_of(np.frombuffer(bytes(side_data), np.int32).tolist())


def upright_size(width: int, height: int, *, aspect: Fraction | None, turn: Turn) -> tuple[int, int]:
    """Return (width, height) in square pixels; the side that a wrong `aspect` shortens is stretched."""
    wide, high = float(width), float(height)
    if aspect and aspect > 1:
        wide *= float(aspect)
    elif aspect:
        high /= float(aspect)
    size = max(1, round(wide)), max(1, round(high))
    return (size[1], size[0]) if turn.transposed else size


def is_hdr(frame: av.VideoFrame) -> bool:
    return frame.color_trc in (PQ, HLG)


class ToRgb:
    """Converts frames of one clip; safe from several threads, each with libswscale's state of its own."""

    def __init__(self) -> None:
        self._own = threading.local()

    def __call__(self, frame: av.VideoFrame, *, wide_size: tuple[int, int] | None = None) -> Pixels:
        """Return RGB [H, W, 3]: of the coded size in 8 bits, or of `wide_size` in full-range 16 bits."""
        _check(frame)
        if frame.colorspace == _UNSAID:
            frame.colorspace = _BT709 if min(frame.width, frame.height) >= _HD_LINES else _BT601
        has_alpha = any(component.is_alpha for component in frame.format.components)
        if wide_size is None:
            target, flags = "rgba" if has_alpha else "rgb24", Interpolation.BICUBIC | _EXACT
        else:
            target, flags = "rgba64le" if has_alpha else "rgb48le", Interpolation.LANCZOS | _EXACT
        full = frame.color_range == _FULL_RANGE or frame.format.name.startswith("yuvj")
        if not hasattr(self._own, "reformatter"):
            self._own.reformatter = VideoReformatter()
        width, height = wide_size or (frame.width, frame.height)
        converted = self._own.reformatter.reformat(
            frame,
            width=width,
            height=height,
            format=target,
            src_color_range=ColorRange.JPEG if full else ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG,
            interpolation=flags,
            threads=1,
        )
        pixels = converted.to_ndarray()
        return _over_background(pixels) if has_alpha else pixels


def _check(frame: av.VideoFrame) -> None:
    if frame.width * frame.height > limits.CLIP_PIXELS:
        raise ReferenceUnreadableError(
            f"a frame has {frame.width}x{frame.height} pixels; at most {limits.CLIP_PIXELS:,} are read"
        )
    if frame.colorspace not in _MATRICES:
        raise ReferenceUnreadableError(
            f"its colours are coded by matrix {frame.colorspace} of H.273, which is not read;"
            " convert it to BT.709 or BT.2020"
        )


def _over_background(pixels: Pixels) -> Pixels:
    most = np.iinfo(pixels.dtype).max
    alpha = pixels[..., 3:].astype(np.float32) / most
    background = np.array(BACKGROUND, np.float32) / 255 * most
    return np.round(pixels[..., :3] * alpha + background * (1 - alpha)).astype(pixels.dtype)
