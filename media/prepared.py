"""Media as the model takes them: pixels at the size they are encoded at, sound at 32 kHz, and what was done.

Everything that conventions decide about sizes, lengths and cuts has been done; the order is the request's.

Shapes: F frames at 24 a second, H and W pixels, N samples per channel.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from media.spool import SpooledFrames
from queue_schemas.geometry import FPS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    place: str
    """`references[0]`, `references[0].audio`, `first_frame`, `last_frame`."""
    sha256: str
    """Of the file."""
    changes: list[str]
    """What was changed in the file, a sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPicture(_Prepared):
    """A picture, upright, sRGB."""

    kind: Literal["image"] = "image"
    pixels: NDArray[np.uint8]
    """[H, W, 3]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSound(_Prepared):
    """A sound of its own, or a clip's: its `place` is the clip's where it came with it."""

    kind: Literal["audio"] = "audio"
    samples: NDArray[np.float32]
    """[2, N] at 32 kHz."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClip(_Prepared):
    """A clip: the frames that the text encoder samples from; the VAE encodes the first of them."""

    kind: Literal["video"] = "video"
    frames: SpooledFrames
    """Uint8 [F, H, W, 3] in pieces, as often as wanted."""
    sound: PreparedSound | None
    fps: int = FPS

    @property
    def num_frames(self) -> int:
        return len(self.frames)

    @property
    def width(self) -> int:
        return self.frames.width

    @property
    def height(self) -> int:
        return self.frames.height


PreparedMedia = PreparedPicture | PreparedClip | PreparedSound
