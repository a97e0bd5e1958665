"""The audio decoder against diffusers 0.42.1, from the same random weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.audio_vae import AudioDecoder, decode_waveform, default_tensors
from model.audio_vae.activation import AliasFreeActivation, low_pass_taps
from model.config import AudioVaeConfig

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # diffusers still builds its weight norm the old way
    pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning"),
]

TOLERANCE = 1e-5  # reached: 1e-6

SMALL = AudioVaeConfig(
    latent_channels=8,
    latent_dim=32,
    decoder_dim=16,
    decoder_rates=(2, 2),
    decoder_kernel_sizes=(4, 4),
    resblock_kernel_sizes=(3, 7),
    resblock_dilations=(1, 3),
)
THREE_KERNELS = AudioVaeConfig(
    latent_channels=4,
    latent_dim=16,
    decoder_dim=32,
    decoder_rates=(5, 2, 2),
    decoder_kernel_sizes=(9, 4, 4),
)
ENCODER_RATES = {SMALL: (2, 2), THREE_KERNELS: (4, 5)}


def make_theirs(config: AudioVaeConfig, seed: int) -> Any:
    from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import AutoencoderKLMiniMaxH3Audio

    theirs = AutoencoderKLMiniMaxH3Audio(
        encoder_dim=4,
        encoder_rates=ENCODER_RATES[config],
        latent_dim=config.latent_dim,
        latent_channels=config.latent_channels,
        num_attention_heads=2,
        decoder_dim=config.decoder_dim,
        decoder_rates=config.decoder_rates,
        decoder_kernel_sizes=config.decoder_kernel_sizes,
        resblock_kernel_sizes=config.resblock_kernel_sizes,
        resblock_dilation_sizes=(config.resblock_dilations,) * len(config.resblock_kernel_sizes),
    ).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name == "decoder.conv_post.weight_g":
                parameter.fill_(0.2)  # most samples stay inside [-1, 1], where they can differ
            elif name.endswith("weight_g"):
                parameter.copy_(0.6 + 0.2 * noise)
            else:
                parameter.copy_(0.3 * noise)
    return theirs


def make_ours(theirs: Any, config: AudioVaeConfig) -> AudioDecoder:
    """Fold diffusers' weight norm: every other name is ComfyUI's already."""
    state, weights = theirs.state_dict(), {}
    for name, tensor in state.items():
        if not name.startswith(("decoder.", "dec_in_proj.")):
            continue
        if name.endswith("weight_g"):
            direction = state[name.removesuffix("_g") + "_v"]
            length = direction.flatten(1).norm(dim=1).view_as(tensor)
            weights[name.removesuffix("_g")] = tensor * direction / length
        elif not name.endswith("weight_v"):
            weights[name] = tensor
    generator = torch.Generator().manual_seed(99)
    weights["latents_mean"] = torch.randn(config.latent_channels, generator=generator)
    weights["latents_std"] = torch.rand(config.latent_channels, generator=generator) + 0.5
    with torch.device("meta"):
        ours = AudioDecoder(config)
    ours.load_state_dict(weights, assign=True)
    return ours


@pytest.mark.parametrize("config", [SMALL, THREE_KERNELS], ids=["small", "three_kernels"])
@pytest.mark.parametrize("num_latents", [1, 2, 9, 40])
def test_a_waveform_of_any_length_equals_diffusers(
    config: AudioVaeConfig, num_latents: int, relative_l2: Callable[[Tensor, Tensor], float]
) -> None:
    theirs = make_theirs(config, seed=1)
    ours = make_ours(theirs, config)
    generator = torch.Generator().manual_seed(num_latents)
    latents = torch.randn(2, config.latent_channels, num_latents, generator=generator)

    found = decode_waveform(ours, latents)
    with torch.no_grad():
        wanted = theirs.decode(ours.denormalise(latents), return_dict=False)[0].squeeze(1)

    assert found.shape == wanted.shape
    assert (found.abs() < 1).float().mean() > 0.5, "clipping left little to compare"
    assert relative_l2(found, wanted) <= TOLERANCE


def test_filters_of_the_file_win_over_computed_ones() -> None:
    theirs = make_theirs(SMALL, seed=2)
    ours = make_ours(theirs, SMALL)
    latents = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(3))
    before = decode_waveform(ours, latents)

    for name, tensor in ours.named_buffers():
        if name.endswith(".filter"):
            tensor.mul_(0.5)

    assert not torch.allclose(decode_waveform(ours, latents), before, atol=1e-3)


@pytest.mark.parametrize("length", [1, 2, 5, 31, 32, 33, 64, 100])
def test_the_banded_activation_equals_padding_filtering_and_cropping(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    taps = low_pass_taps() + 0.05 * torch.randn(1, 1, 12, generator=generator)  # asymmetric, to catch a flip
    activation = AliasFreeActivation(3)
    values = {k: torch.randn(v.shape, generator=generator) for k, v in activation.state_dict().items()}
    activation.load_state_dict(values | {k: taps for k in values if k.endswith("filter")})
    x = torch.randn(2, 3, length, generator=generator)

    with torch.no_grad():
        found = activation(x)
        wide, each = F.pad(x, (5, 5), mode="replicate"), taps.expand(3, 1, 12)
        up = 2 * F.conv_transpose1d(wide, each, stride=2, groups=3)[..., 15:-15]
        wide = F.pad(activation.act(up), (5, 6), mode="replicate")
        wanted = F.conv1d(wide, each, stride=2, groups=3)

    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-5)


def test_default_tensors_complete_a_file_without_filters() -> None:
    state = make_ours(make_theirs(THREE_KERNELS, seed=4), THREE_KERNELS).state_dict()

    defaults = default_tensors(THREE_KERNELS)

    assert {name for name in state if name.endswith(".filter")} == set(defaults)
    assert all(torch.equal(state[name], tensor) for name, tensor in defaults.items())
