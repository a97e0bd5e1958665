"""Sound through the encoder and back: nothing early, nothing late, nothing left over."""

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from media.encode import encode_mp4
from queue_schemas.geometry import track_samples

RATE = 32_000


def decode(path: Path) -> tuple[NDArray[np.float32], list[float]]:
    """Return the sound [2, N] and the time of each block's start."""
    with av.open(str(path)) as film:
        blocks = list(film.decode(audio=0))
    sound = np.concatenate([block.to_ndarray() for block in blocks], axis=1)
    return sound, [float(block.pts * block.time_base) for block in blocks]


@pytest.mark.parametrize("frames", [5, 22, 39, 124, 362])
def test_the_track_decodes_to_exactly_its_samples_from_time_zero(
    write_film: Callable[..., Path], frames: int
) -> None:
    sound, starts = decode(write_film(frames))

    assert sound.shape == (2, track_samples(frames))
    assert starts[0] == 0.0
    assert abs(sound.shape[1] / RATE - frames / 24) < 0.001


@pytest.mark.parametrize("frames", [5, 22, 39, 124])
def test_an_impulse_on_the_first_and_on_the_last_sample_stays_there(
    write_film: Callable[..., Path], frames: int
) -> None:
    waveform = np.zeros((2, track_samples(frames)), np.float32)
    waveform[0, 0] = waveform[1, -1] = 0.9

    sound, _ = decode(write_film(frames, waveform=waveform))

    assert np.abs(sound[0]).argmax() == 0
    assert np.abs(sound[1]).argmax() == sound.shape[1] - 1


def test_a_tone_keeps_frequency_phase_level_and_its_channel(write_film: Callable[..., Path]) -> None:
    t = np.arange(track_samples(124)) / RATE
    waveform = np.stack([0.5 * np.sin(2 * np.pi * 440 * t), np.zeros_like(t)]).astype(np.float32)

    sound, _ = decode(write_film(124, waveform=waveform))

    second = sound[0, :RATE].astype(np.float64)  # one second: a bin is 1 Hz
    spectrum = np.fft.rfft(second)
    assert np.abs(spectrum).argmax() == 440
    assert np.angle(spectrum[440] * 1j) == pytest.approx(
        0.0, abs=0.01
    )  # a sample of delay would be 0.086 rad
    assert 2 * np.abs(spectrum[440]) / RATE == pytest.approx(0.5, rel=0.01)
    # The tone starts and stops at full swing, which AAC smears over the blocks at both ends.
    assert np.abs(sound[0] - waveform[0])[2048:-2048].max() < 0.01
    assert np.abs(sound[1]).max() < 0.001


def test_other_rates_that_aac_has_are_kept(tmp_path: Path, noise: Callable[[int], NDArray[np.uint8]]) -> None:
    waveform = np.zeros((2, round(22 * 44_100 / 24)), np.float32)
    waveform[:, 0] = 0.9

    found = encode_mp4(tmp_path / "a.mp4", frames=[noise(22)], waveform=waveform, sample_rate_hz=44_100)

    assert (found.sample_rate_hz, found.samples) == (44_100, waveform.shape[1])
    assert np.abs(decode(tmp_path / "a.mp4")[0][0]).argmax() == 0
