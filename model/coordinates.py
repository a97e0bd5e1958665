"""Rotary coordinates (t, h, w) of rows: one clock for text, sound and pictures, one grid per canvas.

All are float64 and stay on the host; the cast to float32 comes with the rotary table. ComfyUI and diffusers
sum spans in other orders and agree after that cast. Knows no streams, tags or sigmas.
Sources: the layouts of ComfyUI 783545f and diffusers 0.42.1.

Letters: L text rows, T latent frames of lh × lw latents, n audio latents per channel.
"""

import math

import torch
from torch import Tensor

from queue_schemas.geometry import PATCH, LatentShape

TIME_PER_PIXEL_FRAME = 5 / 3
"""Rotary time of one pixel frame: an audio latent is 1, and 40 of those pass while 24 frames do."""
PIXEL_FRAMES_PER_LATENT = (1, 4, 4, 4, 4)
"""Pixel frames that a latent frame spans, repeating: the first of each 17-frame clip stands alone."""
GRID_SPAN = 32.0
"""Rotary width of a square canvas' side, whatever its resolution."""


def text_positions(num_text: int) -> Tensor:
    """Return (i, 0, 0) for row i, [L, 3]."""
    positions = torch.zeros(num_text, 3, dtype=torch.float64)
    positions[:, 0] = torch.arange(num_text, dtype=torch.float64)
    return positions


def sound_positions(num_latents: int, *, canvas: LatentShape, origin: float) -> Tensor:
    """Return [2n, 3], all of the left channel first; the two sit at the first and last w of `canvas`."""
    w = grid_axis(canvas.width, shape=canvas)
    t = origin + torch.arange(num_latents, dtype=torch.float64)
    h = torch.zeros_like(t)
    return torch.cat([torch.stack((t, h, side.expand_as(t)), dim=-1) for side in (w[0], w[-1])])


def film_positions(shape: LatentShape, *, origin: float) -> Tensor:
    """Return [T × lh/2 × lw/2, 3], frame by frame, row by row."""
    spans = latent_spans(shape.frames)
    return _on_grid(origin + spans.cumsum(0) - spans, shape)


def still_positions(shape: LatentShape, *, time: float) -> Tensor:
    """Return [lh/2 × lw/2, 3] of one frame at a time of its own."""
    return _on_grid(torch.tensor([time], dtype=torch.float64), shape)


def latent_spans(frames: int) -> Tensor:
    """Return the rotary time that each latent frame lasts, [T]."""
    pattern = torch.tensor(PIXEL_FRAMES_PER_LATENT, dtype=torch.float64)
    return TIME_PER_PIXEL_FRAME * pattern[torch.arange(frames) % len(pattern)]


def film_span(frames: int) -> float:
    """Return the rotary time that T latent frames last."""
    return float(latent_spans(frames).sum())


def grid_axis(side: int, *, shape: LatentShape) -> Tensor:
    """Return the coordinates of the patches along one side, [side / 2].

    Sides count relative to the canvas' geometric mean and are centred; the right end is not among the points.
    """
    extent = side / math.sqrt(shape.height * shape.width)
    points = side // PATCH
    k = torch.arange(points, dtype=torch.float64)
    return ((1 - extent) / 2 + k * (extent / points)) * GRID_SPAN


def _on_grid(times: Tensor, shape: LatentShape) -> Tensor:
    h, w = (grid_axis(side, shape=shape) for side in (shape.height, shape.width))
    return torch.cartesian_prod(times, h, w)
