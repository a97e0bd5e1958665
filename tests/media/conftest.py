"""Films to test with: small, seeded, and written by the code under test."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from media.encode import encode_mp4
from queue_schemas.geometry import SAMPLE_RATE_HZ, track_samples


@pytest.fixture
def noise() -> Callable[[int], NDArray[np.uint8]]:
    """Make so many RGB frames of 48 × 32 noise, the same ones each time."""

    def make(frames: int) -> NDArray[np.uint8]:
        return np.random.default_rng(7).integers(0, 256, (frames, 32, 48, 3), dtype=np.uint8)

    return make


@pytest.fixture
def write_film(tmp_path: Path, noise: Callable[[int], NDArray[np.uint8]]) -> Callable[..., Path]:
    """Write a film of so many frames of noise, silent unless a waveform is given, and return where it is."""

    def write(frames: int, *, waveform: NDArray[np.float32] | None = None) -> Path:
        path = tmp_path / f"{frames}.mp4"
        sound = np.zeros((2, track_samples(frames)), np.float32) if waveform is None else waveform
        encode_mp4(path, frames=[noise(frames)], waveform=sound, sample_rate_hz=SAMPLE_RATE_HZ)
        return path

    return write
