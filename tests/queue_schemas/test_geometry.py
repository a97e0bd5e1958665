"""Frame grid, latent sizes and track length, against numbers that ComfyUI's own code gave."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_schemas import geometry, limits

GOLDEN = Path(__file__).parent.parent / "golden" / "geometry.json"


def test_lengths_and_latents_agree_with_comfyui_for_every_length_up_to_400() -> None:
    rows = json.loads(GOLDEN.read_text())["rows"]

    assert len(rows) == 400
    for asked, frames, latent_frames, audio_latents in rows:
        assert geometry.frames_for(asked / geometry.FPS) == frames
        assert geometry.on_grid(frames)
        assert geometry.latent_frames(frames) == latent_frames
        assert geometry.audio_latents(frames) == audio_latents


def test_fifteen_seconds_are_the_longest_film() -> None:
    assert geometry.frames_for(15) == 362 == limits.FRAMES_MAX
    assert geometry.frames_for(0.001) == 5 == limits.FRAMES_MIN
    assert geometry.frames_for(5) == 124


@given(st.floats(0.001, 15.0))
def test_a_film_lasts_at_least_the_seconds_asked_and_less_than_a_step_more(seconds: float) -> None:
    frames = geometry.frames_for(seconds)

    assert geometry.on_grid(frames)
    assert frames >= seconds * 24 - 1e-6
    assert frames == 5 or frames - 17 < seconds * 24


@given(st.integers(-50, 500))
def test_the_neighbours_of_a_length_are_lengths_in_range(frames: int) -> None:
    low, high = geometry.grid_neighbours(frames)

    assert geometry.on_grid(low)
    assert geometry.on_grid(high)
    assert limits.FRAMES_MIN <= low <= high <= limits.FRAMES_MAX


def test_latent_sizes_and_token_rows_of_the_default_film() -> None:
    shape = geometry.latent_shape(frames=124, height=544, width=960)

    assert (shape.frames, shape.height, shape.width, shape.audio) == (37, 34, 60, 207)
    assert shape.video_tokens == 37 * 17 * 30
    assert shape.audio_tokens == 2 * 207


def test_the_track_is_as_long_as_the_film_to_the_nearest_sample() -> None:
    for frames in range(limits.FRAMES_MIN, limits.FRAMES_MAX + 1, 17):
        samples = geometry.track_samples(frames)

        assert abs(samples / geometry.SAMPLE_RATE_HZ - frames / geometry.FPS) <= 0.5 / geometry.SAMPLE_RATE_HZ


@pytest.mark.parametrize(
    ("ratio", "canvas"), [((16, 9), (1344, 768)), ((9, 16), (768, 1344)), ((1, 1), (768, 768))]
)
def test_the_models_own_canvas_of_a_ratio(ratio: tuple[int, int], canvas: tuple[int, int]) -> None:
    assert geometry.resolve_canvas(*ratio) == canvas


def test_a_ratio_beyond_four_to_one_has_no_canvas() -> None:
    with pytest.raises(ValueError, match="4:1"):
        geometry.resolve_canvas(41, 10)
