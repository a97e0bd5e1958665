"""Films and references to test with: small, seeded, and written by real encoders."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import own_media
import pytest
from numpy.typing import NDArray

from media.encode import encode_mp4
from media.prepared import PreparedMedia
from media.references import prepare_references
from queue_schemas.geometry import SAMPLE_RATE_HZ, track_samples
from queue_schemas.jobs import build_job


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


Prepare = Callable[..., list[PreparedMedia]]


@pytest.fixture
def prepare(tmp_path: Path) -> Prepare:
    """Prepare files of `tmp_path` for a job: names, or references as a job gives them; a picture is added."""

    def run(
        *references: str | dict[str, object], kind: str = "image", **fields: object
    ) -> list[PreparedMedia]:
        items = [{"kind": kind, "source": item} if isinstance(item, str) else item for item in references]
        beside = [] if any(item["kind"] != "audio" for item in items) else [beside_picture(tmp_path)]
        defaults = {"prompt": "x", "seed": 1, "frames": 362, "width": 96, "height": 64}
        job = build_job({**defaults, "references": [*items, *beside], **fields}, checkpoint="any")
        prepared = prepare_references(job, {medium.place: tmp_path / medium.source for medium in job.media})
        return prepared[: len(items)]

    return run


def beside_picture(folder: Path) -> dict[str, object]:
    """Sounds alone are no reference."""
    own_media.write_picture(folder / "beside.png", own_media.colour())
    return {"kind": "image", "source": "beside.png"}
