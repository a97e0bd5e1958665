"""Media as `media.references` hands them to the model, of random pixels and samples, at any small size."""

import hashlib

import numpy as np
from numpy.typing import NDArray

from media.prepared import PreparedClip, PreparedPicture, PreparedSound
from media.spool import SpooledFrames


def picture(
    place: str, *, width: int = 64, height: int = 32, seed: int = 1, pixels: NDArray[np.uint8] | None = None
) -> PreparedPicture:
    if pixels is None:
        pixels = _bytes(height, width, 3, seed=seed)
    return PreparedPicture(place=place, sha256=_hash(place, seed), changes=[], pixels=pixels)


def clip(
    place: str,
    *,
    frames: int = 22,
    width: int = 64,
    height: int = 32,
    seed: int = 1,
    sound: PreparedSound | None = None,
    pixels: NDArray[np.uint8] | None = None,
) -> PreparedClip:
    pixels = _bytes(frames, height, width, 3, seed=seed) if pixels is None else pixels
    spool = SpooledFrames(height=pixels.shape[1], width=pixels.shape[2])
    for frame in pixels:
        spool.append(frame)
    return PreparedClip(place=place, sha256=_hash(place, seed), changes=[], frames=spool, sound=sound)


def sound(
    place: str, *, samples: int = 4_000, seed: int = 1, values: NDArray[np.float32] | None = None
) -> PreparedSound:
    if values is None:
        values = np.random.default_rng(seed).normal(0, 0.2, (2, samples)).astype(np.float32)
    return PreparedSound(place=place, sha256=_hash(place, seed), changes=["Resampled."], samples=values)


def _bytes(*shape: int, seed: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def _hash(place: str, seed: int) -> str:
    return hashlib.sha256(f"{place} {seed}".encode()).hexdigest()
