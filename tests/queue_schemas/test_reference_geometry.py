"""Sizes, frames and tokens of references against ComfyUI's own numbers and diffusers' stated ones."""

import json
from pathlib import Path

import pytest

from queue_schemas import reference_geometry as rules
from queue_schemas.conventions import COMFYUI, DIFFUSERS
from queue_schemas.geometry import resolve_canvas

GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "reference_geometry.json").read_text(encoding="utf-8")
)
INSIDE = [row for row in GOLDEN["reference_sizes"]["rows"] if max(row[:2]) <= 4 * min(row[:2])]


@pytest.mark.parametrize("row", INSIDE, ids=lambda row: f"{row[0]}x{row[1]} in {row[2]}x{row[3]}")
def test_sizes_are_comfyuis(row):
    width, height, film_width, film_height, *expected = row
    canvas = (film_width, film_height)
    found = [
        *rules.picture_size(width, height, canvas=canvas, size="match", conventions=COMFYUI),
        *rules.picture_size(width, height, canvas=canvas, size="max", conventions=COMFYUI),
        *rules.clip_size(width, height, conventions=COMFYUI),
    ]
    assert found == expected


def test_canvases_frames_and_grids_are_comfyuis():
    for width, height, *expected in GOLDEN["canvas"]["rows"]:
        if max(width, height) <= 4 * min(width, height):
            assert [*resolve_canvas(width, height)] == expected
    for available, kept, seen in GOLDEN["clip_frames"]["rows"]:
        sampled, encoded = rules.clip_frames(available, film_frames=10**6, conventions=COMFYUI)
        assert (encoded, len(rules.seen_frames(sampled))) == (kept, seen)
    for height, width, *expected in GOLDEN["vision_grid"]["rows"]:
        assert [*rules.picture_grid(width, height, conventions=COMFYUI)] == expected


@pytest.mark.parametrize(
    ("frames", "num_seen", "pairs", "height", "width"),
    [
        (124, 11, 6, 768, 1344),
        (240, 20, 10, 768, 1344),
        (300, 25, 13, 768, 1344),
        (301, 26, 13, 736, 1280),
        (362, 31, 16, 672, 1184),
    ],
)
def test_a_long_clip_is_seen_smaller_under_diffusers_rule(frames, num_seen, pairs, height, width):
    assert len(rules.seen_frames(frames)) == num_seen
    assert len(rules.pair_seconds(frames)) == pairs
    grid = rules.clip_grid(1344, 768, num_seen=num_seen, conventions=DIFFUSERS)
    assert grid == (height // 16, width // 16)
    assert rules.clip_grid(1344, 768, num_seen=num_seen, conventions=COMFYUI) == (48, 84)


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(80, 48, (3424, 2048)), (512, 512, (2048, 2048)), (800, 200, (8192, 2048))],
)
def test_diffusers_brings_every_picture_to_one_short_edge(width, height, expected):
    found = rules.picture_size(width, height, canvas=(960, 544), size="match", conventions=DIFFUSERS)
    assert found == expected


def test_diffusers_sees_a_clip_before_it_is_snapped():
    assert rules.clip_frames(400, film_frames=124, conventions=DIFFUSERS) == (124, 124)
    assert rules.clip_frames(60, film_frames=124, conventions=DIFFUSERS) == (60, 56)
    assert rules.clip_frames(14, film_frames=124, conventions=DIFFUSERS) == (14, 22)
    with pytest.raises(ValueError, match="12 frames at 24 per second; a clip needs 13"):
        rules.clip_frames(12, film_frames=124, conventions=DIFFUSERS)
    with pytest.raises(ValueError, match="4 frames at 24 per second; a clip needs 5"):
        rules.clip_frames(4, film_frames=124, conventions=COMFYUI)


def test_pairs_are_labelled_with_their_middle_and_an_odd_last_with_its_own_time():
    assert rules.pair_seconds(25) == [0.25, 1.0]
    assert rules.pair_seconds(24) == [0.25]


def test_order_and_odd_samples_follow_the_conventions():
    kinds = ["audio", "video", "image", "video", "image"]
    assert rules.packed_order(kinds, conventions=COMFYUI) == [2, 4, 1, 3, 0]
    assert rules.packed_order(kinds, conventions=DIFFUSERS) == [0, 1, 2, 3, 4]
    assert rules.sound_latents(1601, conventions=COMFYUI) == 2
    assert rules.sound_latents(1601, conventions=DIFFUSERS) == 3


def test_a_ratio_beyond_four_to_one_is_refused():
    with pytest.raises(ValueError, match="801x200 is longer than 4:1"):
        rules.picture_size(801, 200, canvas=(960, 544), size="max", conventions=COMFYUI)
