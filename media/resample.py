"""Sound from any rate to 32 kHz in one pass of a windowed sinc: torchaudio's default filter.

Each output sample weighs the inputs around its own time by sinc(t) cos²(πt / 2W) with |t| < W = 6 zero
crossings and a cut-off at 0.99 of the lower Nyquist rate. Output times repeat every `new` samples, so only
`new` rows of about 2W taps exist, also for rates that share no factor with 32 kHz.

Shapes: N samples per channel; P = `new` phases; K taps.
"""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from queue_schemas.geometry import SAMPLE_RATE_HZ

ZERO_CROSSINGS: Final = 6
ROLLOFF: Final = 0.99
_CHUNK = 16_384


def resample(
    samples: NDArray[np.float32], rate_hz: int, *, filter_dtype: type[np.float32 | np.float64]
) -> NDArray[np.float32]:
    """Return float32 [2, ceil(N × 32000 / rate)] of `samples` [2, N]; 32 kHz comes back as it is.

    `filter_dtype` is that in which the taps are computed before they are rounded to float32: float32 as
    ComfyUI does, float64 as torchaudio's transform. They differ by up to 4e-5 at 22.05 and 44.1 kHz.
    """
    if rate_hz == SAMPLE_RATE_HZ:
        return samples
    common = math.gcd(rate_hz, SAMPLE_RATE_HZ)
    old, new = rate_hz // common, SAMPLE_RATE_HZ // common
    first, taps = _filter(old, new, dtype=filter_dtype)
    num_out = -(-samples.shape[1] * new // old)
    reach = taps.shape[1]
    padded = np.pad(samples, ((0, 0), (reach, reach + old)))
    out = np.empty((samples.shape[0], num_out), np.float32)
    offsets = np.arange(reach)
    for start in range(0, num_out, _CHUNK):
        number = np.arange(start, min(start + _CHUNK, num_out))
        phase = number % new
        places = (number // new * old + first[phase] + reach)[:, None] + offsets  # [chunk, K]
        out[:, number] = np.einsum("cnk,nk->cn", padded[:, places], taps[phase])
    return out


def _filter(old: int, new: int, *, dtype: Any) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return where each phase's taps begin, relative to its block of inputs [P], and the taps [P, K]."""
    base = min(old, new) * ROLLOFF
    width = math.ceil(ZERO_CROSSINGS * old / base)
    phase = np.arange(new)
    first = np.maximum(phase * old // new - width, -width)
    index = first[:, None] + np.arange(2 * width + 2)
    # In torchaudio's order of operations, which float32 rounds by.
    t = np.asarray(-phase[:, None], dtype) / dtype(new) + np.asarray(index, dtype) / dtype(old)
    t = np.clip(t * dtype(base), dtype(-ZERO_CROSSINGS), dtype(ZERO_CROSSINGS))
    window = np.cos(t * dtype(math.pi) / dtype(ZERO_CROSSINGS) / dtype(2)) ** 2
    t *= dtype(math.pi)
    sinc = np.where(t == 0, dtype(1), np.sin(t) / np.where(t == 0, dtype(1), t))
    return first, (sinc * (window * dtype(base / old))).astype(np.float32)
