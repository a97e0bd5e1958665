"""A still picture through libav, in 16 bits: HDR in AVIF and PNG, which Pillow gives in 8."""

from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from media.errors import ReferenceUnreadableError
from media.pixels import ToRgb
from media.sniff import FileForm
from media.streams import open_streams


def decode_still(path: Path, form: FileForm) -> NDArray[np.uint16]:
    """Return the first picture as full-range 16-bit RGB [H, W, 3], as coded, not turned."""
    with open_streams(path, form) as container:
        for frame in container.decode(video=0):
            assert isinstance(frame, av.VideoFrame)
            return ToRgb()(frame, wide_size=(frame.width, frame.height)).astype(np.uint16, copy=False)
    raise ReferenceUnreadableError(f"{form.name} without a picture in it")
