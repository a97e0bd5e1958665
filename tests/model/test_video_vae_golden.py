"""The video decoder against numbers that ComfyUI's own code gave (revisions: `model/conventions.py`)."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.config import VideoVaeConfig
from model.video_vae import (
    VideoDecoder,
    decode_pixels,
    parameter_dtypes,
    plan_clips,
    video_config_from_shapes,
)
from model.video_vae.tiles import Seam, split_axis

pytestmark = pytest.mark.usefixtures("one_thread")

FLOAT32_TOLERANCE = 1e-5  # reached: 3e-7 in [0, 1], 1.5e-6 in the decoder's own space


@pytest.fixture(scope="module")
def numbers(golden: Callable[[str], dict[str, Tensor]]) -> dict[str, Tensor]:
    return golden("video_vae")


def load_decoder(numbers: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> VideoDecoder:
    """Load the golden weights; head width and tile geometry are in no shape, so they are named here."""
    weights = {name[8:]: tensor for name, tensor in numbers.items() if name.startswith("weights.")}
    weights |= {name: numbers[name] for name in ("latents_mean", "latents_std")}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    config = replace(video_config_from_shapes(shapes), head_dim=16, tile_pixels=32, tile_overlap_pixels=16)
    with torch.device("meta"):
        decoder = VideoDecoder(config)
    dtypes = parameter_dtypes(config, dtype)
    decoder.load_state_dict({k: v.to(dtypes[k]) for k, v in weights.items()}, assign=True)
    return decoder


def film(decoder: VideoDecoder, latents: Tensor, seam: Seam = "blended") -> Tensor:
    return torch.cat(list(decode_pixels(decoder, latents[0], seam=seam)), dim=1)


@pytest.mark.parametrize("num_latents", [1, 2, 3, 6, 7, 12])
def test_a_film_of_any_length_decodes_to_comfyuis_pixels(
    numbers: dict[str, Tensor], num_latents: int
) -> None:
    decoder = load_decoder(numbers)

    found = film(decoder, numbers[f"decode.t{num_latents}.in"])

    wanted = numbers[f"decode.t{num_latents}.out"][0]
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= FLOAT32_TOLERANCE


def test_one_clip_decodes_to_comfyuis_raw_values(numbers: dict[str, Tensor]) -> None:
    decoder = load_decoder(numbers)

    with torch.no_grad():
        found = decoder(numbers["clip.in_vae_space"])

    assert (found - numbers["clip.out_raw"]).abs().max() <= FLOAT32_TOLERANCE


@pytest.mark.parametrize("shape", ["sq", "wide"])
@pytest.mark.parametrize(("seam", "suffix"), [("blended", "out_newest"), ("raw", "out_raw_rule")])
def test_each_seam_rule_gives_the_pixels_of_its_comfyui_revision(
    numbers: dict[str, Tensor], shape: str, seam: Seam, suffix: str
) -> None:
    decoder = load_decoder(numbers)

    found = film(decoder, numbers[f"tiled.{shape}.in"], seam)

    assert (found - numbers[f"tiled.{shape}.{suffix}"][0]).abs().max() <= FLOAT32_TOLERANCE


def test_a_tiled_film_has_comfyuis_frames(numbers: dict[str, Tensor]) -> None:
    decoder = load_decoder(numbers)

    found = film(decoder, numbers["tiled.video.in"])[:, numbers["tiled.video.frames"].long()]

    assert (found - numbers["tiled.video.out"][0]).abs().max() <= FLOAT32_TOLERANCE


def test_float16_lies_as_near_to_float32_as_comfyuis_float16(numbers: dict[str, Tensor]) -> None:
    decoder = load_decoder(numbers, torch.float16)

    found = film(decoder, numbers["decode.t7.in"])

    # ComfyUI also keeps the residual stream and the statistics in float16, so the two round differently. Each
    # lies within 1e-3 of float32 (theirs 9e-4, ours 8e-4), so they lie within 2e-3 of each other: half a step
    # of 8 bits.
    theirs, exact = numbers["decode.t7.out_fp16"][0], numbers["decode.t7.out"][0]
    assert (found - exact).abs().max() <= 1e-3
    assert (found - exact).abs().mean() <= 1.1 * (theirs - exact).abs().mean()
    assert (found - theirs).abs().max() <= 2e-3


def test_every_latent_length_decodes_to_comfyuis_frame_count(numbers: dict[str, Tensor]) -> None:
    for num_latents, frames in numbers["decoded_lengths"].tolist():
        assert plan_clips(num_latents, VideoVaeConfig()).frames == frames


def test_tiles_of_the_released_geometry_lie_where_comfyui_lays_them(numbers: dict[str, Tensor]) -> None:
    plans = {int(name.split(".")[1]): plan for name, plan in numbers.items() if name.startswith("tileplan.")}

    assert len(plans) == 21
    for length, (starts, lengths, overlaps) in ((k, plan.tolist()) for k, plan in plans.items()):
        found = split_axis(length, tile=256, overlap=64, grid=16)

        assert list(found.starts) == starts
        assert {found.length} == set(lengths)
        assert [*found.overlaps, 0] == overlaps
