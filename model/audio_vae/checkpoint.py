"""What the loader must know about an audio VAE file in ComfyUI's layout: sizes, defaults, leftovers.

Reads shapes and names only, never a file. The dilations of the residual blocks are in no shape.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from model.audio_vae.activation import low_pass_taps
from model.audio_vae.decoder import AudioDecoder
from model.audio_vae.statistics import LATENTS_MEAN, LATENTS_STD
from model.checkpoints import names
from model.config import AudioEncoderConfig, AudioVaeConfig
from model.shapes import DIM_MAX, Shape, check_rules, count_layers, sizing_shapes

ENCODER_PREFIXES: Final = names.ENCODER_PREFIXES["audio_vae"]
DECODER_PREFIXES: Final = names.DECODER_PREFIXES["audio_vae"]

_STAGE, _FIRST = "encoder.block.{}.block.4.weight", "encoder.block.0.weight"
_UP, _BLOCK, _STEP = "decoder.ups.{}.0.weight", "decoder.resblocks.{}.convs1.0.weight", "convs1.{}.weight"
SIZING: Final = {
    "dec_in_proj.weight": 3,
    "decoder.conv_pre.weight": 3,
    _UP.format(0): 3,
    _BLOCK.format(0): 3,
}
"""Tensors whose shapes fix the decoder, and how many dimensions each has; so every further stage's."""


def audio_config_from_shapes(
    shapes: Mapping[str, Shape], *, source: Path = Path("audio VAE")
) -> AudioVaeConfig:
    """Read the architecture from a file's tensor shapes.

    An up-sampler's kernel tells its rate: 2u for an even rate u, 2u - 1 for an odd one. A file without any
    tensor of the encoder holds the decoder alone. Raises `CheckpointMismatchError`, naming `source`, when a
    tensor that fixes a size is missing or cannot be meant.
    """
    sizes = sizing_shapes(shapes, SIZING, source=source)
    base = AudioVaeConfig()
    latent_dim, latent_channels, _ = sizes["dec_in_proj.weight"]
    decoder_dim = sizes["decoder.conv_pre.weight"][0]
    stages, blocks, steps = (
        count_layers(shapes, pattern, source=source)
        for pattern in (_UP, _BLOCK, "decoder.resblocks.0." + _STEP)
    )
    ups = [_UP.format(i) for i in range(stages)]
    kernels = [_BLOCK.format(i) for i in range(max(1, blocks // stages))]
    sizes = sizing_shapes(shapes, dict.fromkeys([*ups, *kernels], 3), source=source)
    taps = {name: shape[2] for name, shape in sizes.items()}
    rates = {name: (taps[name] + 1) // 2 for name in ups}
    check_rules(
        source,
        {
            f"decoder.conv_pre.weight: {decoder_dim} channels, {stages} stages": decoder_dim % 2**stages == 0,
            **{
                f"{name}: {taps[name]} taps fit no rate": taps[name] == 2 * rates[name] - rates[name] % 2
                for name in ups
            },
            **{f"{name}: {taps[name]} taps have no middle": taps[name] % 2 == 1 for name in kernels},
        },
    )
    config = replace(
        base,
        latent_channels=latent_channels,
        latent_dim=latent_dim,
        decoder_dim=decoder_dim,
        decoder_rates=tuple(rates[name] for name in ups),
        decoder_kernel_sizes=tuple(taps[name] for name in ups),
        resblock_kernel_sizes=tuple(taps[name] for name in kernels),
        resblock_dilations=base.resblock_dilations[:steps],
        encoder=None,
    )
    if any(name.startswith(ENCODER_PREFIXES) for name in shapes):
        config = replace(config, encoder=_encoder_from_shapes(shapes, config, source=source))
    return config


def _encoder_from_shapes(
    shapes: Mapping[str, Shape], config: AudioVaeConfig, *, source: Path
) -> AudioEncoderConfig:
    """Read the encoder's stages; a stage's last kernel is twice as long as its rate."""
    base = AudioEncoderConfig()
    num_stages = count_layers(shapes, _STAGE, source=source, first=1)
    stages = [_STAGE.format(index + 1) for index in range(num_stages)]
    sizes = sizing_shapes(shapes, dict.fromkeys([_FIRST, *stages], 3), source=source)
    dim, taps = sizes[_FIRST][0], {name: sizes[name][2] for name in stages}
    hop, decoded = math.prod(taps.values()) >> num_stages, math.prod(config.decoder_rates)
    check_rules(
        source,
        {
            f"{_FIRST}: {dim} channels, doubled {num_stages} times, are more than {DIM_MAX:,}": (
                dim << num_stages <= DIM_MAX
            ),
            f"{stages[-1]}: with the other stages {hop} samples a latent, and the decoder makes {decoded}": (
                hop == decoded
            ),
            f"{_FIRST}: {config.latent_dim} channels do not split into {base.num_heads} heads": (
                config.latent_dim % base.num_heads == 0
            ),
            **{f"{name}: {taps[name]} taps fit no rate": taps[name] % 2 == 0 for name in stages},
        },
    )
    return replace(base, dim=dim, rates=tuple(taps[name] // 2 for name in stages))


def default_tensors(config: AudioVaeConfig) -> dict[str, Tensor]:
    """Return what a file may leave out: the filters, always the same, and the release's statistics."""
    taps = low_pass_taps()
    return {**{name: taps.clone() for name in _filter_names(config)}, **_default_statistics(config)}


def encoder_defaults(config: AudioVaeConfig) -> dict[str, Tensor]:
    """Return what a file may leave out of its encoder: a bias of zeros, and the release's statistics."""
    return {"pre_block.attn.zero_k_bias": torch.zeros(config.latent_dim), **_default_statistics(config)}


def _default_statistics(config: AudioVaeConfig) -> dict[str, Tensor]:
    if config.latent_channels != len(LATENTS_MEAN):
        return {}
    return {"latents_mean": torch.tensor(LATENTS_MEAN), "latents_std": torch.tensor(LATENTS_STD)}


@functools.lru_cache(maxsize=1)  # a decoder has a thousand tensors, and its loader asks more than once
def _filter_names(config: AudioVaeConfig) -> tuple[str, ...]:
    with torch.device("meta"):
        return tuple(name for name in AudioDecoder(config).state_dict() if name.endswith(".filter"))
