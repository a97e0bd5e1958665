"""The audio decoder against numbers that ComfyUI's own code gave."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from model.audio_vae import (
    AudioDecoder,
    audio_config_from_shapes,
    decode_waveform,
    default_tensors,
    limit_loudness,
)
from model.audio_vae.activation import low_pass_taps

pytestmark = pytest.mark.usefixtures("one_thread")

TOLERANCE = 1e-5  # reached: 2e-7 in waveforms, 5e-7 inside


@pytest.fixture(scope="module")
def numbers(golden: Callable[[str], dict[str, Tensor]]) -> dict[str, Tensor]:
    return golden("audio_vae")


@pytest.fixture(scope="module")
def decoder(numbers: dict[str, Tensor]) -> AudioDecoder:
    """The golden file, like any that leaves the filters out, is completed by the default tensors."""
    weights = {name[8:]: tensor.float() for name, tensor in numbers.items() if name.startswith("weights.")}
    config = audio_config_from_shapes({name: tuple(tensor.shape) for name, tensor in weights.items()})
    with torch.device("meta"):
        decoder = AudioDecoder(config)
    decoder.load_state_dict(default_tensors(config) | weights, assign=True)
    return decoder


@pytest.mark.parametrize("case", ["t1", "t7", "t37", "batch2_loud"])
def test_latents_decode_to_comfyuis_waveform(
    decoder: AudioDecoder, numbers: dict[str, Tensor], case: str
) -> None:
    latents, wanted = numbers[f"decode.{case}.in"], numbers[f"decode.{case}.out"]

    # ComfyUI's axes are [batch, channel, side, time]; ours make left and right the batch.
    found = torch.stack([decode_waveform(decoder, item.transpose(0, 1)) for item in latents])

    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= TOLERANCE


def test_one_alias_free_activation_gives_comfyuis_values(
    decoder: AudioDecoder, numbers: dict[str, Tensor]
) -> None:
    block = decoder.decoder.resblocks[0]

    with torch.no_grad():
        activated, whole = block.activations[0](numbers["act.in"]), block(numbers["act.in"])

    assert (activated - numbers["act.out"]).abs().max() <= TOLERANCE
    assert (whole - numbers["amp.out"]).abs().max() <= TOLERANCE


def test_computed_taps_equal_those_that_comfyui_loads(numbers: dict[str, Tensor]) -> None:
    torch.testing.assert_close(low_pass_taps().flatten(), numbers["filter12"], rtol=0, atol=1e-8)


@pytest.mark.parametrize("case", ["quiet", "loud"])
def test_the_loudness_rule_is_that_of_comfyuis_decode_node(numbers: dict[str, Tensor], case: str) -> None:
    heard, wanted = numbers[f"node_decode.{case}.in"][0], numbers[f"node_decode.{case}.out"][0]

    assert (limit_loudness(heard) - wanted).abs().max() <= TOLERANCE
    assert torch.equal(heard, wanted) == (case == "quiet")
