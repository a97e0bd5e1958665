"""The audio encode: against numbers that ComfyUI's own code gave, and against diffusers 0.42.1."""

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from diffusers_twins import audio_twins
from torch import Tensor

from model.audio_vae import (
    DECODER_PREFIXES,
    AudioEncoder,
    audio_config_from_shapes,
    encode_sound,
    fill_latents,
)
from model.config import AudioEncoderConfig, AudioVaeConfig
from model.errors import OutputRejectedError
from queue_schemas.conventions import COMFYUI, DIFFUSERS
from queue_schemas.reference_geometry import sound_latents

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # diffusers still builds its weight norm the old way
    pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning"),
]

TOLERANCE = 1e-5  # reached: 7e-6 of ComfyUI's, 1e-6 of diffusers'
SMALL = AudioVaeConfig(
    latent_channels=8,
    latent_dim=32,
    decoder_dim=16,
    decoder_rates=(2, 2),
    decoder_kernel_sizes=(4, 4),
    encoder=AudioEncoderConfig(dim=4, rates=(2, 2), num_heads=2),
)
ODD_RATES = AudioVaeConfig(
    latent_channels=4,
    latent_dim=48,
    decoder_dim=16,
    decoder_rates=(5, 3),
    decoder_kernel_sizes=(9, 5),
    encoder=AudioEncoderConfig(dim=6, rates=(3, 5), num_heads=3),
)


@pytest.fixture(scope="module")
def numbers(golden: Callable[[str], dict[str, Tensor]]) -> dict[str, Tensor]:
    return golden("audio_vae") | golden("audio_vae_encoder")


@pytest.fixture(scope="module")
def encoder(numbers: dict[str, Tensor]) -> AudioEncoder:
    weights = {name[8:]: tensor.float() for name, tensor in numbers.items() if name.startswith("weights.")}
    config = audio_config_from_shapes({name: tuple(tensor.shape) for name, tensor in weights.items()})
    encoder = AudioEncoder(config)
    encoder.load_state_dict({k: v for k, v in weights.items() if not k.startswith(DECODER_PREFIXES)})
    return encoder


@pytest.mark.parametrize("case", ["L160", "L163", "L400"])
def test_a_sound_encodes_to_comfyuis_latents(
    encoder: AudioEncoder, numbers: dict[str, Tensor], case: str
) -> None:
    # ComfyUI's module fills a remainder up as diffusers does; its axes are [batch, channel, side, time].
    found = encode_sound(encoder, numbers[f"encode.{case}.in"][0], conventions=DIFFUSERS)

    wanted = numbers[f"encode.{case}.out"][0].transpose(0, 1)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= TOLERANCE


@pytest.mark.parametrize("case", ["L1000", "L1601"])
def test_what_comfyuis_wrapper_crops_encodes_to_its_latents(
    encoder: AudioEncoder, numbers: dict[str, Tensor], case: str
) -> None:
    sound = numbers[f"wrapper_encode.{case}.in"][0].expand(2, -1)

    # The wrapper counts in the release's 800 samples, whatever its model's hop.
    cropped = fill_latents(sound, hop=800, remainder=COMFYUI.sound_remainder)
    found = encode_sound(encoder, cropped, conventions=COMFYUI)

    wanted = numbers[f"wrapper_encode.{case}.out"][0].transpose(0, 1)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= TOLERANCE


def test_the_latent_projection_has_comfyuis_values(encoder: AudioEncoder, numbers: dict[str, Tensor]) -> None:
    with torch.no_grad():
        found = encoder.pre_block(numbers["pre_block.in"])

    assert (found - numbers["pre_block.out"]).abs().max() <= TOLERANCE


def test_a_remainder_is_cropped_where_comfyui_crops_it(numbers: dict[str, Tensor]) -> None:
    for length, start, kept in numbers["wrapper_crop"].tolist():
        sound = torch.arange(length).expand(2, -1)

        found = fill_latents(sound, hop=800, remainder="centre_crop")

        assert found.shape == (2, kept)
        assert found[0, 0] == start
        assert kept == 800 * sound_latents(length, conventions=COMFYUI)


@pytest.mark.parametrize("length", [1, 799, 800, 801, 2399])
def test_a_remainder_is_filled_with_silence_at_the_end(length: int) -> None:
    found = fill_latents(torch.ones(2, length), hop=800, remainder="zero_pad")

    assert found.shape == (2, 800 * sound_latents(length, conventions=DIFFUSERS))
    assert found[:, :length].min() == 1
    assert found.sum() == 2 * length


@pytest.mark.parametrize(("length", "remainder"), [(799, "centre_crop"), (0, "centre_crop"), (0, "zero_pad")])
def test_a_sound_that_fills_no_latent_is_refused(
    length: int, remainder: Literal["centre_crop", "zero_pad"]
) -> None:
    with pytest.raises(ValueError, match="needs 800 samples at least"):
        fill_latents(torch.zeros(2, length), hop=800, remainder=remainder)


@pytest.mark.parametrize("config", [SMALL, ODD_RATES], ids=["small", "odd_rates"])
@pytest.mark.parametrize("length", [1, 32, 33, 250])
def test_a_sound_of_any_length_equals_diffusers(
    config: AudioVaeConfig, length: int, relative_l2: Callable[[Tensor, Tensor], float]
) -> None:
    ours, theirs = audio_twins(config)
    sound = torch.randn(2, length, generator=torch.Generator().manual_seed(length))

    found = encode_sound(ours, sound, conventions=DIFFUSERS)
    with torch.no_grad():
        wanted = ours.normalise(theirs.encode(sound[:, None], return_dict=False)[0].mode())

    assert found.shape == wanted.shape
    assert found.std() > 0.1, "the random weights left nothing to compare"
    assert relative_l2(found, wanted) <= TOLERANCE


def test_sound_is_encoded_in_float32_whatever_surrounds_the_call(encoder: AudioEncoder) -> None:
    sound = torch.randn(2, 100, generator=torch.Generator().manual_seed(2))
    before, seen = torch.backends.cudnn.conv.fp32_precision, []
    hook = encoder.register_forward_hook(
        lambda module, inputs, output: seen.append(torch.backends.cudnn.conv.fp32_precision)
    )

    plain = encode_sound(encoder, sound, conventions=COMFYUI)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        surrounded = encode_sound(encoder, sound, conventions=COMFYUI)

    hook.remove()
    assert torch.equal(plain, surrounded)
    assert seen == ["ieee", "ieee"]
    assert torch.backends.cudnn.conv.fp32_precision == before


def test_a_sound_that_is_not_finite_conditions_nothing(encoder: AudioEncoder) -> None:
    with pytest.raises(OutputRejectedError, match="a sound's latents"):
        encode_sound(encoder, torch.full((2, 100), torch.nan), conventions=COMFYUI)


@pytest.mark.parametrize("shape", [(100,), (1, 2, 100)])
def test_sounds_of_another_shape_are_refused(encoder: AudioEncoder, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a sound must be"):
        encode_sound(encoder, torch.zeros(shape), conventions=COMFYUI)
