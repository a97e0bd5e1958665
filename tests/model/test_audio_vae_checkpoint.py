"""The audio VAE's tensors: names and shapes of the released file, and what its loader is told."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.audio_vae import ENCODER_PREFIXES, AudioDecoder, audio_config_from_shapes, default_tensors
from model.config import RELEASED, TINY, AudioVaeConfig
from model.errors import CheckpointMismatchError

Shapes = dict[str, tuple[int, ...]]


@pytest.fixture(scope="module")
def released() -> Shapes:
    file = Path(__file__).parents[1] / "golden" / "headers" / "vae_audio_fp32_shapes.json"
    return {name: tuple(shape) for name, shape in json.loads(file.read_text()).items()}


def module_shapes(config: AudioVaeConfig) -> Shapes:
    with torch.device("meta"):
        decoder = AudioDecoder(config)
    assert {tensor.device.type for tensor in decoder.state_dict().values()} == {"meta"}
    return {name: tuple(tensor.shape) for name, tensor in decoder.state_dict().items()}


def test_the_released_file_holds_the_decoder_the_encoder_and_nothing_else(released: Shapes) -> None:
    config = audio_config_from_shapes(released)

    assert len(released) == 917
    assert config == RELEASED.audio_vae
    assert module_shapes(config) == {k: v for k, v in released.items() if not k.startswith(ENCODER_PREFIXES)}


def test_the_tiny_architecture_is_read_back_from_its_own_shapes() -> None:
    assert audio_config_from_shapes(module_shapes(TINY.audio_vae)) == TINY.audio_vae


def test_other_rates_kernels_and_dilations_are_read_from_shapes() -> None:
    config = AudioVaeConfig(
        latent_channels=8,
        latent_dim=32,
        decoder_dim=48,
        decoder_rates=(3, 4, 2, 7),
        decoder_kernel_sizes=(5, 8, 4, 13),
        resblock_kernel_sizes=(3, 9),
        resblock_dilations=(1, 3),
    )

    assert audio_config_from_shapes(module_shapes(config)) == config


def test_a_file_without_filters_and_statistics_is_completed(released: Shapes) -> None:
    config = audio_config_from_shapes(released)
    shapes = module_shapes(config)

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
