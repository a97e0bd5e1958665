"""Any layout of loudspeakers to two channels, by one table.

Left and right keep their level; the centre goes to both and surround channels to their side at -3 dB, a
rear centre to both at -6 dB; the low-frequency channel is left out (ITU-R BS.775). Mono is duplicated at its
level.
The sum may exceed full scale: whoever holds the whole sound lowers it (`lowered`).
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from media.errors import ReferenceUnreadableError

_M3DB: Final = math.sqrt(0.5)
_LEFT, _RIGHT, _BOTH = (1.0, 0.0), (0.0, 1.0), (_M3DB, _M3DB)
_SIDE_LEFT, _SIDE_RIGHT = (_M3DB, 0.0), (0.0, _M3DB)
_GAINS: Final = {
    "FL": _LEFT, "FR": _RIGHT, "FC": _BOTH, "LFE": (0.0, 0.0), "LFE2": (0.0, 0.0),
    "BL": _SIDE_LEFT, "BR": _SIDE_RIGHT, "SL": _SIDE_LEFT, "SR": _SIDE_RIGHT, "BC": (0.5, 0.5),
    "FLC": _LEFT, "FRC": _RIGHT, "WL": _SIDE_LEFT, "WR": _SIDE_RIGHT, "DL": _LEFT, "DR": _RIGHT,
    "TFL": _SIDE_LEFT, "TFR": _SIDE_RIGHT, "TFC": (0.5, 0.5), "TC": (0.5, 0.5),
    "TBL": _SIDE_LEFT, "TBR": _SIDE_RIGHT, "TBC": (0.5, 0.5), "TSL": _SIDE_LEFT, "TSR": _SIDE_RIGHT,
}  # fmt: skip
"""Of each loudspeaker, by libav's short name, in left and right."""
_UNNAMED: Final = {
    3: ("FL", "FR", "FC"),
    4: ("FL", "FR", "BL", "BR"),
    5: ("FL", "FR", "FC", "BL", "BR"),
    6: ("FL", "FR", "FC", "LFE", "BL", "BR"),
    7: ("FL", "FR", "FC", "LFE", "BC", "SL", "SR"),
    8: ("FL", "FR", "FC", "LFE", "BL", "BR", "SL", "SR"),
}
"""What so many channels are where the file does not say, in WAV's order."""


def matrix_for(channels: tuple[str, ...]) -> NDArray[np.float32]:
    """Return the gains [2, C] for loudspeakers by name. Raises ReferenceUnreadableError for unknown ones."""
    if len(channels) == 1:
        return np.ones((2, 1), np.float32)
    if len(channels) == 2:
        return np.eye(2, dtype=np.float32)
    if not all(name in _GAINS for name in channels):
        if len(channels) not in _UNNAMED or any(name in _GAINS for name in channels):
            raise ReferenceUnreadableError(
                f"its {len(channels)} channels ({', '.join(channels)[:80]}) have no known place;"
                " mix it to stereo"
            )
        channels = _UNNAMED[len(channels)]
    return np.array([_GAINS[name] for name in channels], np.float32).T


def lowered(samples: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
    """Return the sound [2, N] brought down to full scale where it exceeds it, and by how many decibels."""
    peak = float(np.abs(samples).max(initial=0.0))
    if peak <= 1.0:
        return samples, 0.0
    return samples / np.float32(peak), 20 * math.log10(peak)
