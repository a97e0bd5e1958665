"""The audio VAE's tensors: names and shapes of the released file, and what its loader is told."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.audio_vae import (
    DECODER_PREFIXES,
    ENCODER_PREFIXES,
    AudioDecoder,
    AudioEncoder,
    audio_config_from_shapes,
    default_tensors,
)
from model.config import RELEASED, TINY, AudioVaeConfig
from model.errors import CheckpointMismatchError

Shapes = dict[str, tuple[int, ...]]
Half = type[AudioDecoder] | type[AudioEncoder]


@pytest.fixture(scope="module")
def released() -> Shapes:
    file = Path(__file__).parents[1] / "golden" / "headers" / "vae_audio_fp32_shapes.json"
    return {name: tuple(shape) for name, shape in json.loads(file.read_text()).items()}


def module_shapes(config: AudioVaeConfig, *halves: Half) -> Shapes:
    with torch.device("meta"):
        tensors = {k: v for half in halves for k, v in half(config).state_dict().items()}
    assert {tensor.device.type for tensor in tensors.values()} == {"meta"}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("half", "others"), [(AudioDecoder, ENCODER_PREFIXES), (AudioEncoder, DECODER_PREFIXES)]
)
def test_the_released_file_holds_the_decoder_the_encoder_and_nothing_else(
    released: Shapes, half: Half, others: tuple[str, ...]
) -> None:
    config = audio_config_from_shapes(released)

    assert len(released) == 917
    assert config == RELEASED.audio_vae
    assert module_shapes(config, half) == {k: v for k, v in released.items() if not k.startswith(others)}


def test_the_tiny_architecture_is_read_back_from_its_own_shapes() -> None:
    config = TINY.audio_vae

    assert audio_config_from_shapes(module_shapes(config, AudioDecoder, AudioEncoder)) == config
    assert audio_config_from_shapes(module_shapes(config, AudioDecoder)) == replace(config, encoder=None)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("encoder.block.0.weight", (2**17, 1, 7), "doubled 5 times, are more than 1,048,576"),
        ("encoder.block.2.block.4.weight", (32, 16, 7), "7 taps fit no rate"),
        ("encoder.block.1.block.4.weight", (16, 8, 6), r"block\.5.* 1200 samples .* the decoder makes 800"),
        ("dec_in_proj.weight", (260, 32, 1), "260 channels do not split into 8 heads"),
    ],
)
def test_an_encoder_that_cannot_be_meant_is_refused(name: str, shape: tuple[int, ...], message: str) -> None:
    shapes = module_shapes(TINY.audio_vae, AudioDecoder, AudioEncoder) | {name: shape}

    with pytest.raises(CheckpointMismatchError, match=message):
        audio_config_from_shapes(shapes)


def test_other_rates_kernels_and_dilations_are_read_from_shapes() -> None:
    config = AudioVaeConfig(
        latent_channels=8,
        latent_dim=32,
        decoder_dim=48,
        decoder_rates=(3, 4, 2, 7),
        decoder_kernel_sizes=(5, 8, 4, 13),
        resblock_kernel_sizes=(3, 9),
        resblock_dilations=(1, 3),
        encoder=None,
    )

    assert audio_config_from_shapes(module_shapes(config, AudioDecoder)) == config


def test_a_file_without_filters_and_statistics_is_completed(released: Shapes) -> None:
    config = audio_config_from_shapes(released)
    shapes = module_shapes(config, AudioDecoder)

    defaults = default_tensors(config)

    assert len(defaults) == 2 * 127 + 2
    assert all(tuple(tensor.shape) == shapes[name] for name, tensor in defaults.items())
    assert defaults["latents_std"].min() > 0


def test_statistics_of_another_channel_count_are_never_made_up() -> None:
    defaults = default_tensors(replace(TINY.audio_vae, latent_channels=8))

    assert not {"latents_mean", "latents_std"} & defaults.keys()


def test_a_file_without_a_decoder_is_refused_by_name() -> None:
    with pytest.raises(CheckpointMismatchError, match=r"some\.safetensors.*decoder\.conv_pre\.weight"):
        audio_config_from_shapes({"mean_proj.weight": (32, 32, 1)}, source=Path("some.safetensors"))
