"""Pictures brought to a size as ComfyUI and diffusers do, to the last level."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import own_media
import pytest
from PIL import Image
from safetensors.numpy import load_file

from media.fitting import fit
from media.prepared import PreparedMedia, PreparedPicture
from media.references import picture_size_of, prepare_references
from queue_schemas import reference_geometry as rules
from queue_schemas.conventions import PRESETS
from queue_schemas.jobs import build_job

Prepare = Callable[..., list[PreparedMedia]]
GOLDEN = load_file(Path(__file__).parent.parent / "golden" / "media.safetensors")


@pytest.mark.parametrize("case", ["down", "up", "tall", "same"])
@pytest.mark.parametrize(("how", "golden"), [("stretch", "disabled"), ("crop_then_resize", "center")])
def test_stretching_and_cropping_are_comfyuis(case: str, how: str, golden: str) -> None:
    levels = np.clip(GOLDEN[f"resize.{case}.in"][0] * np.float32(255), 0, 255).astype(np.uint8)

    fitted, _ = fit(Image.fromarray(levels), (64, 32), how=how)

    assert np.array_equal(np.asarray(fitted), GOLDEN[f"resize.{case}.{golden}"][0])


@pytest.mark.parametrize("size", [(100, 70), (33, 90), (64, 33), (65, 32), (640, 317)])
def test_covering_is_diffusers(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels)

    fitted, _ = fit(image, (64, 32), how="resize_then_crop")

    scale = max(64 / size[0], 32 / size[1])
    wide, high = max(64, round(size[0] * scale)), max(32, round(size[1] * scale))
    left, top = max(0, (wide - 64) // 2), max(0, (high - 32) // 2)
    covering = image.resize((wide, high), Image.Resampling.LANCZOS)
    assert np.array_equal(np.asarray(fitted), np.asarray(covering.crop((left, top, left + 64, top + 32))))


@pytest.mark.parametrize("conventions", ["comfyui", "diffusers"])
@pytest.mark.parametrize("size", ["match", "max"])
def test_a_phones_photos_get_the_size_that_the_rules_give(
    prepare: Prepare, tmp_path: Path, conventions: str, size: str
) -> None:
    for name in ("a.jpg", "b.jpg"):
        own_media.write_picture(tmp_path / name, own_media.quarters(width=582, height=1200))
    asked = {} if conventions == "diffusers" else {"size": size}
    items = [{"kind": "image", "source": name, **asked} for name in ("a.jpg", "b.jpg")]

    prepared = prepare(*items, conventions=conventions, width=960, height=544)

    wide, high = rules.picture_size(582, 1200, canvas=(960, 544), size=size, conventions=PRESETS[conventions])
    for picture in prepared:
        assert isinstance(picture, PreparedPicture)
        assert picture.pixels.shape == (high, wide, 3)
        assert picture.changes == [f"Scaled from 582x1200 to {wide}x{high} pixels."]


def keyframes(folder: Path, **fields: object) -> list[PreparedMedia]:
    job = build_job({"prompt": "x", "width": 96, "height": 64, **fields}, checkpoint="any")
    return prepare_references(job, {medium.place: folder / medium.source for medium in job.media})


@pytest.mark.parametrize(
    ("conventions", "frames", "ways"),
    [
        ("comfyui", ("first_frame", "last_frame"), ("stretch", "crop_then_resize")),
        ("comfyui", ("last_frame",), ("crop_then_resize",)),
        ("diffusers", ("first_frame", "last_frame"), ("stretch", "resize_then_crop")),
        ("diffusers", ("last_frame",), ("stretch",)),
    ],
)
def test_keyframes_fill_the_canvas_by_conventions(
    tmp_path: Path, conventions: str, frames: tuple[str, ...], ways: tuple[str, ...]
) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    own_media.write_picture(tmp_path / "a.png", pixels)

    prepared = keyframes(tmp_path, conventions=conventions, **dict.fromkeys(frames, "a.png"))

    assert [frame.place for frame in prepared] == list(frames)
    for frame, how in zip(prepared, ways, strict=True):
        assert isinstance(frame, PreparedPicture)
        fitted, told = fit(Image.fromarray(pixels), (96, 64), how=how)
        assert np.array_equal(frame.pixels, np.asarray(fitted))
        assert frame.changes == told
        assert ("which distorts it" in told[0]) == (how == "stretch")


def test_a_keyframe_of_the_canvas_size_stays_as_it_is(tmp_path: Path) -> None:
    pixels = own_media.quarters(width=96, height=64)
    own_media.write_picture(tmp_path / "a.png", pixels)

    first, last = keyframes(tmp_path, first_frame="a.png", last_frame="a.png")

    assert np.array_equal(first.pixels, pixels)
    assert np.array_equal(last.pixels, pixels)
    assert (first.changes, last.changes) == ([], [])
    assert picture_size_of(tmp_path / "a.png") == (96, 64)
