"""The video encode: against numbers that ComfyUI's own code gave, and what surrounds its network."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from model.config import VideoEncoderConfig, VideoVaeConfig
from model.errors import OutputRejectedError
from model.video_vae import DECODER_PREFIXES, VideoEncoder, encode_clip, video_config_from_shapes
from model.video_vae.pixels import from_bytes
from model.video_vae.tiles import split_axis
from queue_schemas.conventions import COMFYUI

pytestmark = pytest.mark.usefixtures("one_thread")

Frames = npt.NDArray[np.uint8]
TOLERANCE = 2e-5  # reached: 6e-6
SMALL = VideoVaeConfig(
    latent_channels=2,
    patch_pixels=4,
    tile_pixels=16,
    tile_overlap_pixels=4,
    encoder=VideoEncoderConfig(
        channels=(4, 4), blocks_per_level=1, space_strides=(2, 2), time_strides=(2, 2), num_groups=2
    ),
)


@pytest.fixture(scope="module")
def numbers(golden: Callable[[str], dict[str, Tensor]]) -> dict[str, Tensor]:
    return golden("video_vae") | golden("video_vae_encoder")


@pytest.fixture(scope="module")
def golden_encoder(numbers: dict[str, Tensor]) -> VideoEncoder:
    """The golden weights; the geometry of tiles is in no shape, so it is named here."""
    weights = {name[8:]: tensor for name, tensor in numbers.items() if name.startswith("weights.")}
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    weights |= {name: numbers[name] for name in ("latents_mean", "latents_std")}
    config = dataclasses.replace(video_config_from_shapes(shapes), tile_pixels=32, tile_overlap_pixels=16)
    encoder = VideoEncoder(config)
    encoder.load_state_dict({k: v for k, v in weights.items() if not k.startswith(DECODER_PREFIXES)})
    return encoder


@pytest.fixture
def encoder() -> VideoEncoder:
    generator = torch.Generator().manual_seed(0)
    encoder = VideoEncoder(SMALL)
    encoder.load_state_dict(
        {k: torch.randn(v.shape, generator=generator) * 0.3 for k, v in encoder.state_dict().items()}
    )
    return encoder


def draw_frames(count: int, height: int = 12, width: int = 20) -> Frames:
    return np.random.default_rng(count).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("case", ["image", "f5", "f17", "f22", "image_tiled", "f22_tiled"])
def test_pictures_and_clips_encode_to_comfyuis_latents(
    golden_encoder: VideoEncoder, numbers: dict[str, Tensor], case: str
) -> None:
    frames = numbers[f"encode.{case}.in_u8"][0].permute(1, 2, 3, 0).numpy()

    found = encode_clip(golden_encoder, [frames], conventions=COMFYUI)

    wanted = numbers[f"encode.{case}.out"][0]
    assert (found.shape, found.dtype) == (wanted.shape, torch.float32)
    assert (found - wanted).abs().max() <= TOLERANCE


def test_a_whole_clip_has_comfyuis_moments(golden_encoder: VideoEncoder, numbers: dict[str, Tensor]) -> None:
    frames = numbers["encode.f5.in_u8"][0].permute(1, 2, 3, 0)
    whole = torch.cat([frames, frames[-1:].expand(12, -1, -1, -1)])

    with torch.no_grad():
        found = golden_encoder(from_bytes(whole)[None])

    assert found.shape == (1, 48, 5, 2, 3)
    assert (found - numbers["encode.f5.moments"]).abs().max() <= TOLERANCE


def test_tiles_laid_in_latents_are_those_laid_in_pixels(numbers: dict[str, Tensor]) -> None:
    for name, plan in ((k, v) for k, v in numbers.items() if k.startswith("tileplan.")):
        found = split_axis(int(name.split(".")[1]) // 16, tile=16, overlap=4, grid=1)

        assert [16 * start for start in found.starts] == plan[0].tolist()


@pytest.mark.parametrize(("count", "latents"), [(1, 1), (2, 2), (17, 2), (18, 7), (22, 7), (39, 12)])
@pytest.mark.parametrize("piece", [1, 5, 100])
def test_the_pieces_that_a_clip_comes_in_change_nothing(
    encoder: VideoEncoder, count: int, latents: int, piece: int
) -> None:
    frames = draw_frames(count)
    pieces = (frames[first : first + piece] for first in range(0, count, piece))

    found = encode_clip(encoder, pieces, conventions=COMFYUI)

    assert found.shape == (2, latents, 3, 5)
    assert torch.equal(found, encode_clip(encoder, [frames], conventions=COMFYUI))


def test_frames_are_encoded_before_more_than_a_clip_and_a_piece_is_held(encoder: VideoEncoder) -> None:
    calls: list[tuple[int, ...]] = []
    encoder.register_forward_pre_hook(lambda module, inputs: calls.append(inputs[0].shape[:3]))
    read: list[int] = []

    def pieces() -> Iterator[Frames]:
        for _ in range(6):
            read.append(len(calls))
            yield draw_frames(10)

    encode_clip(encoder, pieces(), conventions=COMFYUI)

    tiles = 2  # of 16 pixels in a width of 20, each alone since a clip of 17 frames is large
    assert read == [0, 0, tiles, tiles, 2 * tiles, 2 * tiles]
    assert calls == [(1, 3, 17)] * 3 * tiles + [(2, 3, 5)]


def test_what_a_clip_raises_while_it_is_read_ends_the_encode(encoder: VideoEncoder) -> None:
    def pieces() -> Iterator[Frames]:
        yield draw_frames(20)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        encode_clip(encoder, pieces(), conventions=COMFYUI)


def test_memory_of_a_piece_that_is_used_again_or_read_only_does_not_matter(encoder: VideoEncoder) -> None:
    frames = draw_frames(30)
    frames.flags.writeable = False
    buffer = np.empty_like(frames[:10])

    def pieces() -> Iterator[Frames]:
        for first in range(0, 30, 10):
            buffer[:] = frames[first : first + 10]
            yield buffer

    found = encode_clip(encoder, pieces(), conventions=COMFYUI)

    assert torch.equal(found, encode_clip(encoder, [frames], conventions=COMFYUI))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 12, 20, 3), "one frame at least"),
        ((1, 12, 18, 3), r"frames of 18x12: .* multiples of 4 from 8 on"),
        ((5, 4, 20, 3), r"frames of 20x4"),
    ],
)
def test_frames_that_make_no_latents_are_refused(
    encoder: VideoEncoder, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        encode_clip(encoder, [np.zeros(shape, dtype=np.uint8)], conventions=COMFYUI)


def test_latents_that_are_not_finite_condition_nothing(encoder: VideoEncoder) -> None:
    with torch.no_grad():
        encoder.quant_conv.bias[1] = torch.inf

    with pytest.raises(OutputRejectedError, match="a reference's latents"):
        encode_clip(encoder, [draw_frames(1)], conventions=COMFYUI)


@pytest.mark.parametrize("exact", [False, True])
def test_an_exact_encode_takes_tf32_from_the_convolutions_and_gives_it_back(
    encoder: VideoEncoder, exact: bool
) -> None:
    before = torch.backends.cudnn.conv.fp32_precision
    seen: list[str] = []
    encoder.register_forward_hook(
        lambda module, inputs, output: seen.append(torch.backends.cudnn.conv.fp32_precision)
    )

    encode_clip(encoder, [draw_frames(1)], conventions=COMFYUI, exact=exact)

    assert seen == ["ieee" if exact else before]
    assert torch.backends.cudnn.conv.fp32_precision == before
