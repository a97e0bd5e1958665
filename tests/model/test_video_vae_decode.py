"""The video decode around its network: parts, seams, tile sizes, bytes, refusals."""

import itertools

import pytest
import torch
from torch import Tensor

from model.config import TINY, VideoVaeConfig
from model.errors import OutputRejectedError
from model.video_vae import VideoDecoder, decode_frames, decode_pixels, plan_clips
from model.video_vae.pixels import Rounding, to_bytes
from model.video_vae.tiles import Seam, fade_in, split_axis, stitch

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = VideoVaeConfig(
    latent_channels=4,
    decoder_dim=16,
    num_layers=1,
    head_dim=8,
    num_register_tokens=1,
    ffn_dim=16,
    patch_pixels=4,
    tile_pixels=16,
    tile_overlap_pixels=4,
)


@pytest.fixture
def decoder() -> VideoDecoder:
    generator = torch.Generator().manual_seed(0)
    decoder = VideoDecoder(CONFIG)
    decoder.load_state_dict(
        {k: torch.randn(v.shape, generator=generator) * 0.3 for k, v in decoder.state_dict().items()}
    )
    return decoder


def draw_latents(num_latents: int, height: int, width: int) -> Tensor:
    return torch.randn(4, num_latents, height, width, generator=torch.Generator().manual_seed(1))


def test_a_film_leaves_the_decoder_in_parts_of_17_frames_and_one_of_5(decoder: VideoDecoder) -> None:
    parts = list(decode_frames(decoder, draw_latents(12, 3, 5), seam="blended", rounding="truncate"))

    assert [tuple(part.shape) for part in parts] == [(17, 12, 20, 3), (17, 12, 20, 3), (5, 12, 20, 3)]
    assert {part.dtype for part in parts} == {torch.uint8}
    assert {part.device.type for part in parts} == {"cpu"}


def test_a_part_is_finished_before_the_next_clip_is_decoded(decoder: VideoDecoder) -> None:
    calls: list[int] = []
    decoder.register_forward_pre_hook(lambda module, inputs: calls.append(len(inputs[0])))
    parts = decode_pixels(decoder, draw_latents(17, 2, 2), seam="blended")

    assert calls == []
    next(parts)
    assert len(calls) == 1
    next(parts)
    assert len(calls) == 2


def test_frames_past_the_film_never_make_a_part_of_their_own(decoder: VideoDecoder) -> None:
    latents = draw_latents(8, 2, 2)

    lengths = [part.shape[1] for part in decode_pixels(decoder, latents, seam="blended")]

    assert lengths == [17, 9]
    assert sum(lengths) == plan_clips(8, CONFIG).frames


def test_tiles_decoded_together_equal_tiles_decoded_one_by_one(decoder: VideoDecoder) -> None:
    latents = draw_latents(7, 9, 7)
    sizes: list[int] = []
    decoder.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))

    together = torch.cat(list(decode_pixels(decoder, latents, seam="blended", tiles_per_call=4)), dim=1)
    apart = torch.cat(list(decode_pixels(decoder, latents, seam="blended", tiles_per_call=1)), dim=1)

    assert sizes == [4, 2] + [1] * 6
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-6)  # only orders of summation may differ


def test_the_same_latents_give_the_same_bytes_twice(decoder: VideoDecoder) -> None:
    latents = draw_latents(7, 9, 7)

    first, second = (
        torch.cat(list(decode_frames(decoder, latents, seam="blended", rounding="truncate")))
        for _ in range(2)
    )

    assert torch.equal(first, second)


@pytest.mark.parametrize("tile", [4, 8, 12, 20, 400])
@pytest.mark.parametrize("seam", ["raw", "blended"])
def test_any_tile_size_covers_the_whole_picture(decoder: VideoDecoder, tile: int, seam: Seam) -> None:
    latents = draw_latents(2, 7, 11)

    (film,) = decode_pixels(decoder, latents, seam=seam, tile_pixels=tile)

    assert film.shape == (3, 5, 28, 44)


def test_a_tile_no_larger_than_its_least_overlap_still_ends() -> None:
    plan = split_axis(544, tile=64, overlap=64, grid=16)

    assert plan.extent == 544
    assert min(plan.overlaps) == 48


@pytest.mark.parametrize("tile", [0, 8, 250, -16])
def test_a_tile_that_is_no_whole_number_of_latents_is_refused(tile: int) -> None:
    with pytest.raises(ValueError, match="multiples of 16"):
        split_axis(544, tile=tile, overlap=64, grid=16)


def test_tiles_cover_any_axis_without_gap_and_overlap_enough() -> None:
    for length in range(16, 2064, 16):
        plan = split_axis(length, tile=256, overlap=64, grid=16)

        ends = [start + plan.length for start in plan.starts]
        assert plan.extent == length
        assert all(start % 16 == 0 for start in plan.starts)
        assert all(end - start >= 64 for end, start in zip(ends, plan.starts[1:], strict=False))
        assert sum(plan.kept) == length


@pytest.mark.parametrize("seam", ["raw", "blended"])
def test_tiles_cut_from_one_picture_stitch_back_to_it(seam: Seam) -> None:
    picture = torch.rand(3, 2, 56, 72, generator=torch.Generator().manual_seed(2))
    rows, columns = (split_axis(side, tile=32, overlap=16, grid=8) for side in (56, 72))
    tiles = (
        picture[..., y : y + 32, x : x + 32].clone()
        for y, x in itertools.product(rows.starts, columns.starts)
    )

    canvas = stitch(tiles, rows=rows, columns=columns, seam=seam)

    torch.testing.assert_close(canvas, picture, rtol=0, atol=1e-6)


def test_a_blended_seam_has_no_step_where_overlaps_of_one_axis_overlap() -> None:
    rows = split_axis(8, tile=32, overlap=16, grid=8)
    columns = split_axis(56, tile=32, overlap=16, grid=8)  # overlaps 24 and 16 of a tile of 32
    steps = {}

    for seam in ("raw", "blended"):
        tiles = (torch.full((3, 1, 8, 32), value) for value in (0.0, 1.0, 0.0))
        line = stitch(tiles, rows=rows, columns=columns, seam=seam)[0, 0, 0]
        steps[seam] = float(line.diff().abs().max())

    assert steps["raw"] > 0.2
    assert steps["blended"] < 0.1


def test_a_fade_starts_all_old_and_never_quite_ends() -> None:
    new, old = torch.ones(6), torch.zeros(4)

    fade_in(new, old, dim=0)

    assert new.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(
    ("rounding", "wanted"), [("truncate", [0, 0, 1, 254, 255]), ("round", [0, 0, 2, 254, 255])]
)
def test_bytes_follow_the_named_rounding(rounding: Rounding, wanted: list[int]) -> None:
    values = torch.tensor([0.0, 0.5, 1.5, 254.4, 255.0]) / 255  # round goes half to even
    pixels = values.expand(3, 1, 1, 5)

    frames = to_bytes(pixels, rounding)

    assert frames.shape == (1, 1, 5, 3)
    assert frames[0, 0, :, 0].tolist() == wanted


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_latents_that_are_not_finite_are_never_made_into_pixels(decoder: VideoDecoder, value: float) -> None:
    latents = draw_latents(7, 2, 2)
    latents[1, 3, 1, 0] = value

    with pytest.raises(OutputRejectedError, match="video pixels"):
        list(decode_frames(decoder, latents, seam="blended", rounding="truncate"))


@pytest.mark.parametrize("shape", [(1, 4, 7, 2, 2), (3, 7, 2, 2), (4, 2, 2), (4, 0, 2, 2)])
def test_latents_of_another_shape_are_refused(decoder: VideoDecoder, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"latent"):
        list(decode_pixels(decoder, torch.zeros(shape), seam="blended"))


def test_the_tiny_checkpoint_decodes_a_demo_film() -> None:
    generator = torch.Generator().manual_seed(3)
    decoder = VideoDecoder(TINY.video_vae)
    decoder.load_state_dict(
        {k: torch.randn(v.shape, generator=generator) * 0.05 for k, v in decoder.state_dict().items()}
    )
    latents = torch.randn(24, 7, 4, 6, generator=generator)

    film = torch.cat(list(decode_frames(decoder, latents, seam="blended", rounding="truncate")))

    assert film.shape == (22, 64, 96, 3)
    assert film.float().std() > 0
