"""Encode of a picture or a whole clip: clips in time, tiles in space, one posterior out.

Memory does not grow with the length but for the latents: 17 frames as bytes, one tile of them as float32. Of
the last 17 only the 5 whose latents are kept are encoded, which changes nothing, since the encoder is causal.
Knows nothing about weights, files or what a reference is.

Shapes: frames [F, H, W, 3], latents [24, t, lh, lw]; lh = H / 16, lw = W / 16; t = 1 for one frame, else
5 * ceil(F / 17) - 3, which is 5n + 2 for 17n + 5 frames.
Sources: ComfyUI 783545f, diffusers 0.42.1; they differ in what `Conventions.condition_posterior` says.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model.config import VideoVaeConfig
from model.errors import OutputRejectedError
from model.precision import full_float32_convolutions
from model.video_vae.encoder import VideoEncoder
from model.video_vae.pixels import from_bytes
from model.video_vae.tiles import AxisTiles, split_axis, stitch
from queue_schemas.conventions import Conventions

POSTERIOR_SEED: Final = 42
"""Of the generator from which diffusers samples each condition, whatever the job's own seed."""
LOG_VARIANCE_RANGE: Final = (-30.0, 20.0)


@torch.no_grad()
def encode_clip(
    encoder: VideoEncoder,
    frames: Iterable[npt.NDArray[np.uint8]],
    *,
    conventions: Conventions,
    exact: bool = False,
) -> Tensor:
    """Encode a clip, or a picture as a clip of one frame, to normalised latents [24, t, lh, lw].

    They are float32 and on the encoder's device. `frames` are pieces [f, H, W, 3] of any lengths, taken as
    they are needed: an error that they raise ends the encode. H and W are multiples of 16, 32 at least. A GPU
    convolves in TF32, as it does under diffusers; with `exact` in full float32, which an H200 takes six times
    as long for, and from which TF32 is 0.14 % off. Raises `OutputRejectedError` when a latent is not finite.
    """
    with full_float32_convolutions() if exact else nullcontext():
        moments = [_encode_window(encoder, window) for window in _windows(frames, encoder.config)]
    latents = encoder.normalise(_draw(torch.cat(moments, dim=1), conventions.condition_posterior))
    if not latents.isfinite().all():
        raise OutputRejectedError("a reference's latents")
    return latents


def _windows(pieces: Iterable[npt.NDArray[np.uint8]], config: VideoVaeConfig) -> Iterator[Tensor]:
    """Yield what the encoder sees at a time: 17 frames; of the last clip the first 5; a lone picture."""
    patch, length = config.patch_frames, config.clip_frames
    kept = 1 + patch * (math.ceil(length / patch) - config.token_drop - 1)
    held: Tensor | None = None
    is_first = True
    for piece in pieces:
        new = torch.tensor(piece)  # a copy: the caller may use its memory again
        held = new if held is None else torch.cat([held, new])
        while len(held) > length:
            yield held[:length]
            held, is_first = held[length:], False
    if held is None or not len(held):
        raise ValueError("a clip has one frame at least")
    if len(held) == 1 and is_first:
        yield held
        return
    yield held[torch.arange(kept).clamp(max=len(held) - 1)]  # a short clip stays on its last frame


def _encode_window(encoder: VideoEncoder, window: Tensor) -> Tensor:
    """Encode frames uint8 [f, H, W, 3] to moments [2 * 24, t, lh, lw]."""
    config = encoder.config
    grid = config.patch_pixels
    height, width = window.shape[1:3]
    if height % grid or width % grid or min(height, width) < 2 * grid:
        raise ValueError(
            f"frames of {width}x{height}: both sides must be multiples of {grid} from {2 * grid} on"
        )
    rows, columns = (
        split_axis(
            side // grid,
            tile=config.tile_pixels // grid,
            overlap=config.tile_overlap_pixels // grid,
            grid=1,
        )
        for side in (height, width)
    )
    # Both sources fade tiles of moments over their neighbours as these were encoded.
    tiles = _encoded_tiles(encoder, window, rows=rows, columns=columns)
    return stitch(tiles, rows=rows, columns=columns, seam="raw")


def _encoded_tiles(
    encoder: VideoEncoder, window: Tensor, *, rows: AxisTiles, columns: AxisTiles
) -> Iterator[Tensor]:
    """Yield the moments [2 * 24, t, th, tw] of each tile, row by row; of short windows several at a time."""
    grid, device = encoder.config.patch_pixels, encoder.latents_mean.device
    window = window.to(device)
    high, wide = rows.length * grid, columns.length * grid
    corners = [(y * grid, x * grid) for y in rows.starts for x in columns.starts]
    per_call = max(1, encoder.config.clip_frames // len(window))
    for first in range(0, len(corners), per_call):
        batch = [
            from_bytes(window[:, y : y + high, x : x + wide]) for y, x in corners[first : first + per_call]
        ]
        yield from encoder(torch.stack(batch)).unbind(0)


def _draw(moments: Tensor, posterior: Literal["mean", "sample_fp16"]) -> Tensor:
    """Return the latents that stand for moments [2 * 24, t, lh, lw]."""
    mean, log_variance = moments.chunk(2)
    if posterior == "mean":
        return mean
    generator = torch.Generator().manual_seed(POSTERIOR_SEED)
    noise = torch.randn(mean.shape, generator=generator).to(mean.device)
    spread = (0.5 * log_variance.clamp(*LOG_VARIANCE_RANGE)).exp()
    return (mean + spread * noise).half()
