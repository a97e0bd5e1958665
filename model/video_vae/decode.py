"""Decode of a whole film: clips in time, tiles in space, parts out as soon as they are finished.

Memory does not grow with the film's length: one clip's canvas, a few tiles and the five frames that the next
clip fades in over. A part is 17 frames, the last one 5 (fewer where T is no 5n + 2). Fades happen in the
decoder's own space and dtype, before [0, 1]. Knows nothing about weights, files or sound.

Shapes: latents [24, T, lh, lw] as the sampler leaves them; H = 16 lh, W = 16 lw.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from model.video_vae.clips import plan_clips
from model.video_vae.decoder import VideoDecoder
from model.video_vae.pixels import Rounding, to_bytes, to_unit_range
from model.video_vae.tiles import AxisTiles, Seam, fade_in, split_axis, stitch

TILES_PER_CALL = 4
"""All tiles of a clip have one shape, so several go through the decoder together; each in flight takes some
105 MB in float16 at released size."""


def decode_frames(
    decoder: VideoDecoder,
    latents: Tensor,
    *,
    seam: Seam,
    rounding: Rounding,
    tile_pixels: int | None = None,
    tiles_per_call: int = TILES_PER_CALL,
) -> Iterator[Tensor]:
    """Yield the film's parts as uint8 [f, H, W, 3] on the CPU; arguments and errors of `decode_pixels`."""
    parts = decode_pixels(decoder, latents, seam=seam, tile_pixels=tile_pixels, tiles_per_call=tiles_per_call)
    return (to_bytes(part, rounding) for part in parts)


def decode_pixels(
    decoder: VideoDecoder,
    latents: Tensor,
    *,
    seam: Seam,
    tile_pixels: int | None = None,
    tiles_per_call: int = TILES_PER_CALL,
) -> Iterator[Tensor]:
    """Yield the film's parts as float32 RGB in [0, 1], [3, f, H, W], on the decoder's device.

    `latents` [24, T, lh, lw] are normalised. `tile_pixels` other than the checkpoint's own (256) is
    approximate: the decoder's positions are normalised per tile. Raises `OutputRejectedError` when a part is
    not finite.
    """
    channels = decoder.config.latent_channels
    if latents.ndim != 4 or latents.shape[0] != channels:
        raise ValueError(f"video latents must be [{channels}, T, lh, lw], not {list(latents.shape)}")
    raw = _decode_raw(decoder, latents, seam=seam, tile_pixels=tile_pixels, tiles_per_call=tiles_per_call)
    return (to_unit_range(part) for part in raw)


@torch.no_grad()
def _decode_raw(
    decoder: VideoDecoder, latents: Tensor, *, seam: Seam, tile_pixels: int | None, tiles_per_call: int
) -> Iterator[Tensor]:
    """Yield the film's parts [3, f, H, W] in the decoder's own space."""
    config = decoder.config
    plan = plan_clips(latents.shape[1], config)
    rows, columns = (
        split_axis(
            side * config.patch_pixels,
            tile=tile_pixels or config.tile_pixels,
            overlap=config.tile_overlap_pixels,
            grid=config.patch_pixels,
        )
        for side in latents.shape[2:]
    )
    latents = decoder.denormalise(latents.to(decoder.latents_mean.device))
    remaining = plan.frames
    tail: Tensor | None = None
    for start in plan.starts:
        moments = torch.arange(start, start + plan.length, device=latents.device)
        window = latents[:, moments.clamp(max=latents.shape[1] - 1)]  # [24, 7, lh, lw]
        tiles = _decoded_tiles(decoder, window, rows=rows, columns=columns, per_call=tiles_per_call)
        clip = stitch(tiles, rows=rows, columns=columns, seam=seam)  # [3, 28, H, W]
        main = clip[:, plan.main]
        if tail is not None:
            fade_in(main, tail, dim=1)
        tail = clip[:, plan.tail].clone()  # a copy, so that the canvas can go once `main` is used
        yield main[:, :remaining]
        remaining -= min(remaining, main.shape[1])
    if tail is not None and remaining:
        yield tail[:, :remaining]


def _decoded_tiles(
    decoder: VideoDecoder, window: Tensor, *, rows: AxisTiles, columns: AxisTiles, per_call: int
) -> Iterator[Tensor]:
    """Yield the decoded tiles [3, 28, th, tw] of one clip, row by row, `per_call` of them at a time."""
    grid = decoder.config.patch_pixels
    height, width = rows.length // grid, columns.length // grid
    corners = [(y // grid, x // grid) for y in rows.starts for x in columns.starts]
    for first in range(0, len(corners), per_call):
        batch = torch.stack(
            [window[..., y : y + height, x : x + width] for y, x in corners[first : first + per_call]]
        )
        yield from decoder(batch).unbind(0)
