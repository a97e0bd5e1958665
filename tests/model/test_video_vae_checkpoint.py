"""The video VAE's tensors: names and shapes of the released file, and what its loader is told."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.config import RELEASED, TINY, VideoVaeConfig
from model.errors import CheckpointMismatchError
from model.video_vae import (
    DECODER_PREFIXES,
    ENCODER_PREFIXES,
    VideoDecoder,
    VideoEncoder,
    default_tensors,
    parameter_dtypes,
    video_config_from_shapes,
)

Shapes = dict[str, tuple[int, ...]]
Half = type[VideoDecoder] | type[VideoEncoder]


@pytest.fixture(scope="module")
def released() -> Shapes:
    file = Path(__file__).parents[1] / "golden" / "headers" / "vae_video_fp16_shapes.json"
    return {name: tuple(shape) for name, shape in json.loads(file.read_text()).items()}


def module_shapes(config: VideoVaeConfig, *halves: Half) -> Shapes:
    with torch.device("meta"):
        tensors = {k: v for half in halves for k, v in half(config).state_dict().items()}
    assert {tensor.device.type for tensor in tensors.values()} == {"meta"}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("half", "others", "num_weights"),
    [
        # All of the file's weights but statistics and the unused mask token.
        (VideoDecoder, ENCODER_PREFIXES, 2_423_530_496 + 600),
        (VideoEncoder, DECODER_PREFIXES, 180_335_536 + 2_352),
    ],
)
def test_the_released_file_holds_the_decoder_the_encoder_and_nothing_else(
    released: Shapes, half: Half, others: tuple[str, ...], num_weights: int
) -> None:
    config = video_config_from_shapes(released)

    own = {k: v for k, v in released.items() if not k.startswith(others)}

    assert len(released) == 562
    assert config == RELEASED.video_vae
    assert module_shapes(config, half) == own
    unused = {"latents_mean", "latents_std", "decoder.mask_token"}
    assert sum(math.prod(shape) for name, shape in own.items() if name not in unused) == num_weights


def test_the_tiny_architecture_is_read_back_from_its_own_shapes() -> None:
    config = TINY.video_vae

    assert video_config_from_shapes(module_shapes(config, VideoDecoder, VideoEncoder)) == config
    assert video_config_from_shapes(module_shapes(config, VideoDecoder)) == replace(config, encoder=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": (32, 64, 64, 96, 48, 128)}, r"down\.4\.\S+: 48 channels do not split into 32 groups"),
        ({"space_strides": (2, 2, 2, 1, 1, 1)}, r"1 latent in 4 frames of 8 pixels .* decoder makes 4 of 16"),
        ({"blocks_per_level": 3}, "3 blocks a level instead of 2"),
        (
            {
                "channels": (32,) * 7,
                "space_strides": (2, 2, 2, 2, 1, 1, 1),
                "time_strides": (1, 2, 2, *[1] * 4),
            },
            "more than 6 levels",
        ),
    ],
)
def test_an_encoder_that_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    assert TINY.video_vae.encoder is not None
    odd = replace(TINY.video_vae.encoder, **changes)
    if "channels" in changes:
        odd = replace(odd, num_groups=16)  # which no shape tells
    shapes = module_shapes(replace(TINY.video_vae, encoder=odd), VideoDecoder, VideoEncoder)

    with pytest.raises(CheckpointMismatchError, match=message):
        video_config_from_shapes(shapes)


def test_a_decoder_with_one_block_fewer_loads() -> None:
    config = replace(TINY.video_vae, num_layers=3)
    whole = VideoDecoder(config).state_dict()
    pruned = {k: v for k, v in whole.items() if not k.startswith("decoder.transformer_blocks.2.")}

    found = video_config_from_shapes({name: tuple(tensor.shape) for name, tensor in pruned.items()})
    with torch.device("meta"):
        decoder = VideoDecoder(found)
    decoder.load_state_dict(pruned, assign=True)

    assert found.num_layers == 2
    assert {tensor.device.type for tensor in decoder.state_dict().values()} == {"cpu"}


def test_blocks_past_a_gap_are_left_over_for_the_loader_to_refuse(released: Shapes) -> None:
    with_gap = {k: v for k, v in released.items() if not k.startswith("decoder.transformer_blocks.7.")}

    config = video_config_from_shapes(with_gap)

    assert config.num_layers == 7
    assert (
        "decoder.transformer_blocks.8.scale1" in with_gap.keys() - module_shapes(config, VideoDecoder).keys()
    )


def test_a_file_without_a_decoder_is_refused_by_name() -> None:
    with pytest.raises(CheckpointMismatchError, match=r"some\.safetensors.*decoder\.proj_out\.weight"):
        video_config_from_shapes({"encoder.conv_in.weight": (8, 3, 3, 3, 3)}, source=Path("some.safetensors"))


def test_what_a_file_may_leave_out_has_the_modules_shapes() -> None:
    shapes = module_shapes(TINY.video_vae, VideoDecoder)

    defaults = default_tensors(TINY.video_vae)

    assert sorted(defaults) == ["decoder.mask_token", "latents_mean", "latents_std"]
    assert all(tuple(tensor.shape) == shapes[name] for name, tensor in defaults.items())
    assert defaults["latents_std"].min() > 0


def test_statistics_of_another_channel_count_are_never_made_up() -> None:
    assert set(default_tensors(replace(TINY.video_vae, latent_channels=16))) == {"decoder.mask_token"}


def test_float16_keeps_norms_scales_and_statistics_in_float32() -> None:
    half = parameter_dtypes(TINY.video_vae, torch.float16)
    exact = parameter_dtypes(TINY.video_vae, torch.float32)

    assert half.keys() == exact.keys() == module_shapes(TINY.video_vae, VideoDecoder).keys()
    assert set(exact.values()) == {torch.float32}
    kept = {name.removeprefix("decoder.transformer_blocks.0.") for name, d in half.items() if d.itemsize == 4}
    block = {"norm1.weight", "norm2.weight", "scale1", "scale2"}
    assert {name for name in kept if "blocks.1." not in name} == block | {
        "latents_mean",
        "latents_std",
        "decoder.norm_out.weight",
        "decoder.norm_out.bias",
    }


def test_bfloat16_is_refused() -> None:
    with pytest.raises(ValueError, match="float16 or float32"):
        parameter_dtypes(TINY.video_vae, torch.bfloat16)
