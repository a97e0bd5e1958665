"""What the loader must know about an audio VAE file in ComfyUI's layout: sizes, defaults, leftovers.

Reads shapes and names only, never a file. The dilations of the residual blocks are in no shape.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from model.audio_vae.activation import low_pass_taps
from model.audio_vae.decoder import AudioDecoder
from model.audio_vae.statistics import LATENTS_MEAN, LATENTS_STD
from model.config import AudioVaeConfig
from model.shapes import Shape, check_rules, count_layers, sizing_shapes

ENCODER_PREFIXES = ("encoder.", "pre_block.", "mean_proj.", "logs_proj.")
"""Names that belong to the file but not to the decoder."""

_UP, _BLOCK, _STEP = "decoder.ups.{}.0.weight", "decoder.resblocks.{}.convs1.0.weight", "convs1.{}.weight"
SIZING: Final = {
    "dec_in_proj.weight": 3,
    "decoder.conv_pre.weight": 3,
    _UP.format(0): 3,
    _BLOCK.format(0): 3,
}
"""Tensors whose shapes fix the architecture, and how many dimensions each has; so every further stage's."""


def audio_config_from_shapes(
    shapes: Mapping[str, Shape], *, source: Path = Path("audio VAE")
) -> AudioVaeConfig:
    """Read the architecture from a file's tensor shapes.

    An up-sampler's kernel tells its rate: 2u for an even rate u, 2u - 1 for an odd one.
    Raises `CheckpointMismatchError`, naming `source`, when a tensor that fixes a size is missing or cannot
    be meant.
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
    return replace(
        base,
        latent_channels=latent_channels,
        latent_dim=latent_dim,
        decoder_dim=decoder_dim,
        decoder_rates=tuple(rates[name] for name in ups),
        decoder_kernel_sizes=tuple(taps[name] for name in ups),
        resblock_kernel_sizes=tuple(taps[name] for name in kernels),
        resblock_dilations=base.resblock_dilations[:steps],
    )


def default_tensors(config: AudioVaeConfig) -> dict[str, Tensor]:
    """Return what a file may leave out: the filters, always the same, and the release's statistics."""
    taps = low_pass_taps()
    tensors = {name: taps.clone() for name in _filter_names(config)}
    if config.latent_channels == len(LATENTS_MEAN):
        tensors |= {"latents_mean": torch.tensor(LATENTS_MEAN), "latents_std": torch.tensor(LATENTS_STD)}
    return tensors


@functools.lru_cache(maxsize=1)  # a decoder has a thousand tensors, and its loader asks more than once
def _filter_names(config: AudioVaeConfig) -> tuple[str, ...]:
    with torch.device("meta"):
        return tuple(name for name in AudioDecoder(config).state_dict() if name.endswith(".filter"))
