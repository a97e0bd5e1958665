"""HDR and wide colour into sRGB, by one rule for pictures and clips.

1. PQ or HLG becomes display light: PQ as absolute, HLG by its system gamma 1.2 on a 1000 nit display.
2. 203 nits, the reference white of ITU-R BT.2408, becomes sRGB's white; the primaries become BT.709's.
3. The brightest channel m of a pixel is brought down to f(m), the others in proportion, so that the hue
   stays: f is the identity up to 0.75 and then rolls off, reaching 1 at 1000 nits; what is brighter is cut.
4. Colours outside BT.709 are cut at its edge; sRGB's curve codes the result in 8 bits.

SDR with wide primaries takes steps 2 (primaries alone) and 4, decoded by sRGB's curve.
Sources: ITU-R BT.2100, BT.2408; H.273 for the code points; the curve of step 3 is this project's choice.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

PQ: Final = 16
HLG: Final = 18
"""Transfer functions by their number in H.273."""
_CHROMATICITIES: Final = {
    1: ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060)),
    9: ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046)),
    12: ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060)),
}
"""Of red, green and blue, with the white point D65, by H.273's number of the primaries."""
PRIMARIES_NAMES: Final = {9: "BT.2020", 12: "Display P3"}
TRANSFER_NAMES: Final = {PQ: "PQ", HLG: "HLG"}
HDR_RULE: Final = "203 nits became white, brighter light was rolled off up to 1000 nits"
_WHITE: Final = (0.3127, 0.3290)
_REFERENCE_NITS: Final = 203.0
_PEAK_NITS: Final = 1000.0
_KNEE: Final = 0.75
_BAND_ROWS: Final = 256


def is_wide(primaries: int) -> bool:
    """Say whether these primaries are converted; any other are taken for BT.709's."""
    return primaries in PRIMARIES_NAMES


def hdr_to_srgb(pixels: NDArray[np.uint16], *, transfer: int, primaries: int) -> NDArray[np.uint8]:
    """Return uint8 sRGB [H, W, 3] of full-range 16-bit PQ or HLG; unknown primaries count as BT.2020."""
    matrix = to_bt709(primaries if is_wide(primaries) else 9)
    return _by_bands(pixels, lambda band: _tone_mapped(_display_light(band, transfer) @ matrix.T))


def wide_to_srgb(pixels: NDArray[np.uint8], *, primaries: int) -> NDArray[np.uint8]:
    """Return uint8 sRGB [H, W, 3] of SDR [H, W, 3] whose primaries are wide."""
    matrix = to_bt709(primaries)
    return _by_bands(pixels, lambda band: _srgb_decoding()[band] @ matrix.T)


@lru_cache
def to_bt709(primaries: int) -> NDArray[np.float32]:
    """Return the matrix [3, 3] from linear light in these primaries to BT.709's."""
    return (np.linalg.inv(_to_xyz(1)) @ _to_xyz(primaries)).astype(np.float32)


def _by_bands(
    pixels: NDArray[Any], linear: Callable[[NDArray[Any]], NDArray[np.float32]]
) -> NDArray[np.uint8]:
    """Clip and code what `linear` makes of some rows at a time, so that memory stays small."""
    out = np.empty(pixels.shape, np.uint8)
    for top in range(0, pixels.shape[0], _BAND_ROWS):
        light = np.clip(linear(pixels[top : top + _BAND_ROWS]), 0.0, 1.0)
        out[top : top + _BAND_ROWS] = _srgb_coding()[(light * 65_535 + 0.5).astype(np.uint16)]
    return out


def _to_xyz(primaries: int) -> NDArray[np.float64]:
    columns = np.array([(x / y, 1.0, (1 - x - y) / y) for x, y in _CHROMATICITIES[primaries]]).T
    x, y = _WHITE
    return columns * np.linalg.solve(columns, np.array([x / y, 1.0, (1 - x - y) / y]))


def _display_light(band: NDArray[np.uint16], transfer: int) -> NDArray[np.float32]:
    """Return linear light [h, W, 3] in which 1.0 is reference white."""
    if transfer == PQ:
        return _pq_decoding()[band]
    scene = _hlg_decoding()[band]
    luma = scene @ np.array([0.2627, 0.6780, 0.0593], np.float32)
    return scene * (luma**0.2 * np.float32(_PEAK_NITS / _REFERENCE_NITS))[..., None]


def _tone_mapped(light: NDArray[np.float32]) -> NDArray[np.float32]:
    brightest = np.maximum(light.max(axis=-1), np.float32(1e-6))
    over = np.maximum(brightest - _KNEE, 0) / (1 - _KNEE)
    most = (_PEAK_NITS / _REFERENCE_NITS - _KNEE) / (1 - _KNEE)
    mapped = np.minimum(brightest, _KNEE) + (1 - _KNEE) * over * (1 + over / most**2) / (1 + over)
    return light * (mapped / brightest)[..., None].astype(np.float32)


@lru_cache
def _pq_decoding() -> NDArray[np.float32]:
    root = (np.arange(65_536) / 65_535) ** (32 / 2523)
    nits = 10_000 * (np.maximum(root - 3424 / 4096, 0) / (2413 / 128 - 2392 / 128 * root)) ** (16_384 / 2610)
    return (nits / _REFERENCE_NITS).astype(np.float32)


@lru_cache
def _hlg_decoding() -> NDArray[np.float32]:
    a = 0.17883277
    b, c = 1 - 4 * a, 0.5 - a * np.log(4 * a)
    code = np.arange(65_536) / 65_535
    return np.where(code <= 0.5, code**2 / 3, (np.exp((code - c) / a) + b) / 12).astype(np.float32)


@lru_cache
def _srgb_decoding() -> NDArray[np.float32]:
    code = np.arange(256) / 255
    return np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4).astype(np.float32)


@lru_cache
def _srgb_coding() -> NDArray[np.uint8]:
    light = np.arange(65_536) / 65_535
    coded = np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.round(coded * 255).astype(np.uint8)
