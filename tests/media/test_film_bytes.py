"""The same frames and sound give the same bytes, however often they are encoded in one process."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from media.encode import encode_mp4
from queue_schemas.geometry import SAMPLE_RATE_HZ, track_samples


def moving_picture(frames: int) -> NDArray[np.uint8]:
    """Make frames of 192 x 128, the demo's size, that move and flicker: what rate control reacts to."""
    y, x = np.mgrid[0:128, 0:192]
    noise = np.random.default_rng(3).normal(0, 12, (frames, 128, 192, 3))
    waves = [[np.sin((x * (1 + c) + y + 5 * t) / 23) for c in range(3)] for t in range(frames)]
    return np.clip(128 + 90 * np.moveaxis(np.asarray(waves), 1, -1) + noise, 0, 255).astype(np.uint8)


@pytest.mark.parametrize(("frames", "times"), [(39, 10), pytest.param(124, 64, marks=pytest.mark.slow)])
def test_equal_films_have_equal_bytes(tmp_path: Path, frames: int, times: int) -> None:
    pictures = moving_picture(frames)
    sound = np.random.default_rng(5).uniform(-0.5, 0.5, (2, track_samples(frames))).astype(np.float32)

    digests = set()
    for number in range(times):
        path = tmp_path / f"{number}.mp4"
        encode_mp4(path, frames=[pictures], waveform=sound, sample_rate_hz=SAMPLE_RATE_HZ)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
        path.unlink()

    assert len(digests) == 1
