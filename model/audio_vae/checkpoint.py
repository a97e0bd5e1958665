"""What the loader must know about an audio VAE file in ComfyUI's layout: sizes, defaults, leftovers.

Reads shapes and names only, never a file. The dilations of the residual blocks are in no shape.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from model.audio_vae.activation import low_pass_taps
from model.audio_vae.decoder import AudioDecoder
from model.audio_vae.statistics import LATENTS_MEAN, LATENTS_STD
from model.config import AudioVaeConfig
from model.errors import CheckpointMismatchError
from model.shapes import count_consecutive

ENCODER_PREFIXES = ("encoder.", "pre_block.", "mean_proj.", "logs_proj.")
"""Names that belong to the file but not to the decoder."""


def audio_config_from_shapes(
    shapes: Mapping[str, tuple[int, ...]], *, source: Path = Path("audio VAE")
) -> AudioVaeConfig:
    """Read the architecture from a file's tensor shapes.

    An up-sampler's kernel tells its rate: 2u for an even rate u, 2u - 1 for an odd one.
    Raises `CheckpointMismatchError`, naming `source`, when a tensor that fixes a size is missing.
    """
    up, kernel, step = "decoder.ups.{}.0.weight", "decoder.resblocks.{}.convs1.0.weight", "convs1.{}.weight"
    needed = ("dec_in_proj.weight", "decoder.conv_pre.weight", up.format(0), kernel.format(0))
    missing = [name for name in needed if name not in shapes]
    if missing:
        raise CheckpointMismatchError(source, missing=missing)
    base = AudioVaeConfig()
    latent_dim, latent_channels, _ = shapes["dec_in_proj.weight"]
    kernels = tuple(shapes[up.format(i)][2] for i in range(count_consecutive(shapes, up)))
    per_stage = max(1, count_consecutive(shapes, kernel) // len(kernels))
    steps = count_consecutive(shapes, "decoder.resblocks.0." + step)
    return replace(
        base,
        latent_channels=latent_channels,
        latent_dim=latent_dim,
        decoder_dim=shapes["decoder.conv_pre.weight"][0],
        decoder_rates=tuple((k + 1) // 2 for k in kernels),
        decoder_kernel_sizes=kernels,
        resblock_kernel_sizes=tuple(shapes[kernel.format(i)][2] for i in range(per_stage)),
        resblock_dilations=base.resblock_dilations[:steps],
    )


def default_tensors(config: AudioVaeConfig) -> dict[str, Tensor]:
    """Return what a file may leave out: the filters, always the same, and the release's statistics."""
    with torch.device("meta"):
        names = AudioDecoder(config).state_dict().keys()
    tensors = {name: low_pass_taps() for name in names if name.endswith(".filter")}
    if config.latent_channels == len(LATENTS_MEAN):
        tensors |= {"latents_mean": torch.tensor(LATENTS_MEAN), "latents_std": torch.tensor(LATENTS_STD)}
    return tensors
