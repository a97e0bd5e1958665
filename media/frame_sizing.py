"""What becomes of each frame of one clip: turned upright, made sRGB, scaled, in that order of telling.

Sample aspect ratio and scaling are one pass: SDR becomes 8-bit RGB and goes through PIL's LANCZOS, as both
references do; HDR is scaled in 16 bits by libswscale's and then toned down to 8 (`media/hdr.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Self

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from media.admission import check_shape
from media.colours import BACKGROUND_NAME
from media.hdr import HDR_RULE, PRIMARIES_NAMES, TRANSFER_NAMES, hdr_to_srgb, is_wide, wide_to_srgb
from media.pixels import ToRgb, Turn, is_hdr, turn_of_frame, upright_size

Size = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class FrameSizing:
    """What every frame of one clip goes through; `picture` is safe from several threads."""

    size: Size
    coded: Size
    turn: Turn
    to_rgb: ToRgb = field(default_factory=ToRgb)
    changes: list[str]
    _changed_midway: bool = False

    @classmethod
    def of(
        cls, first: av.VideoFrame, *, aspect: Fraction | None, size_for: Callable[[int, int], Size]
    ) -> Self:
        turn = turn_of_frame(first)
        upright = upright_size(first.width, first.height, aspect=aspect, turn=turn)
        check_shape(*upright)
        size = size_for(*upright)
        changes = []
        if turn != Turn():
            changes.append(f"Its frames were {turn}, as its container says.")
        if aspect and aspect != 1:
            changes.append(f"Its pixels of {aspect.numerator}:{aspect.denominator} became square.")
        changes += _colour_changes(first)
        if upright != size:
            changes.append(
                f"Each frame was scaled from {upright[0]}x{upright[1]} to {size[0]}x{size[1]} pixels."
            )
        return cls(size=size, coded=(first.width, first.height), turn=turn, changes=changes)

    def note(self, frame: av.VideoFrame) -> None:
        """Add to `changes` what this frame has that the first had not."""
        if (frame.width, frame.height) != self.coded and not self._changed_midway:
            self._changed_midway = True
            self.changes.append("Its frames change size midway; each was scaled to the same size.")

    def picture(self, frame: av.VideoFrame) -> NDArray[np.uint8]:
        """Return one frame upright, sRGB, of the clip's size."""
        if is_hdr(frame):
            coded = self.size[::-1] if self.turn.transposed else self.size
            deep = self.turn.apply(self.to_rgb(frame, wide_size=coded))
            return hdr_to_srgb(deep, transfer=frame.color_trc, primaries=frame.color_primaries)
        image = Image.fromarray(np.ascontiguousarray(self.turn.apply(self.to_rgb(frame))))
        if image.size != self.size:
            image = image.resize(self.size, Image.Resampling.LANCZOS)
        sized = np.asarray(image)
        if is_wide(frame.color_primaries):
            return wide_to_srgb(sized, primaries=frame.color_primaries)
        return sized


def _colour_changes(frame: av.VideoFrame) -> list[str]:
    found = []
    bits = max((component.bits for component in frame.format.components), default=8)
    if any(component.is_alpha for component in frame.format.components):
        found.append(f"What is transparent in it was laid over {BACKGROUND_NAME}.")
    if is_hdr(frame):
        found.append(f"HDR ({TRANSFER_NAMES[frame.color_trc]}) was converted to sRGB: {HDR_RULE}.")
    elif bits > 8:
        found.append(f"Its {bits} bits per channel were reduced to 8.")
    if is_wide(frame.color_primaries) and not is_hdr(frame):
        found.append(f"Its colours were converted to sRGB from {PRIMARIES_NAMES[frame.color_primaries]}.")
    return found
