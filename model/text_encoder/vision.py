"""What the vision tower sees of a picture or of a pair of frames: its final size and its rows of patches.

A picture fills both halves of a temporal patch; two frames fill one half each. Knows no ids and no weights.
Sources: ComfyUI 783545f, transformers 5.23.0 (Qwen2-VL image processor, Qwen3-VL video processor), equal but
for bounds and resampling.

Shapes: T frames (1 or 2) of H × W pixels; gh × gw patches of 16 × 16 pixels, N of them.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from queue_schemas.conventions import Conventions
from queue_schemas.reference_geometry import VISION_PATCH, clip_grid, grid_tokens, picture_grid

PAIR = 2
"""Frames in a temporal patch."""
MERGE = 2
"""Patches per side of what becomes one token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sight:
    """One pass of the vision tower. Its rows follow from these fields alone: they can be kept by content."""

    frames: Tensor
    """uint8 [T, H, W, 3] on the host, not yet resized."""
    grid: tuple[int, int]
    """Rows and columns of patches: gh, gw."""
    antialias: bool
    """Resize by an antialiased bicubic on bytes, as transformers does; else by a plain bilinear on floats, as
    ComfyUI does. At the sizes of real jobs neither changes anything."""

    @property
    def num_tokens(self) -> int:
        return grid_tokens(self.grid)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VisionRows:
    """What the tower makes of one `Sight`, [gh * gw / 4, C] each, in the order of its tokens."""

    merged: Tensor
    """Takes the place of the pad tokens' embeddings."""
    deepstack: tuple[Tensor, ...]
    """Added to those rows after the first language layers, one per layer."""


def picture_sight(pixels: Tensor, *, conventions: Conventions) -> Sight:
    """Return what is seen of a picture, uint8 [H, W, 3]."""
    _require_bytes(pixels, dimensions=3)
    height, width, _ = pixels.shape
    grid = picture_grid(width, height, conventions=conventions)
    return Sight(frames=pixels[None], grid=grid, antialias=_antialias(conventions))


def pair_sights(frames: Tensor, *, conventions: Conventions) -> list[Sight]:
    """Return what is seen of a clip's sampled frames, uint8 [n, H, W, 3]: pairs, an odd last frame twice."""
    _require_bytes(frames, dimensions=4)
    num_seen, height, width, _ = frames.shape
    grid = clip_grid(width, height, num_seen=num_seen, conventions=conventions)
    return [Sight(frames=pair, grid=grid, antialias=_antialias(conventions)) for pair in frames.split(PAIR)]


def patch_rows(sight: Sight, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return the tower's input [N, 3 × 2 × 16 × 16]: values from -1 to 1, four rows per token.

    A row is channel, frame, pixel row, pixel column. Memory: about 8 times the frames' bytes in float32.
    """
    rows, columns = sight.grid
    pixels = _resized(sight, device=device).sub_(0.5).div_(0.5).to(dtype)  # [T, 3, 16 gh, 16 gw]
    blocks = pixels.expand(PAIR, -1, -1, -1).reshape(
        PAIR, 3, rows // MERGE, MERGE, VISION_PATCH, columns // MERGE, MERGE, VISION_PATCH
    )
    return blocks.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(rows * columns, -1)


def _resized(sight: Sight, *, device: torch.device) -> Tensor:
    """Return a copy of the frames at their final size, float32 [T, 3, 16 gh, 16 gw] from 0 to 1."""
    pixels = sight.frames.permute(0, 3, 1, 2)
    rows, columns = sight.grid
    size = (rows * VISION_PATCH, columns * VISION_PATCH)
    if sight.antialias and pixels.shape[2:] != size:  # bytes are rounded to bytes, which only the host does
        pixels = F.interpolate(pixels, size=size, mode="bicubic", antialias=True)
    pixels = pixels.to(device).to(torch.float32).div_(255)
    if pixels.shape[2:] != size:
        pixels = F.interpolate(pixels, size=size, mode="bilinear")
    return pixels


def _antialias(conventions: Conventions) -> bool:
    return conventions.vision_bounds == "whole_clip"


def _require_bytes(pixels: Tensor, *, dimensions: int) -> None:
    has_pixels = pixels.dim() == dimensions and pixels.shape[-1] == 3 and pixels.numel() > 0
    if pixels.dtype != torch.uint8 or not has_pixels:
        raise ValueError(
            f"the vision tower takes bytes of {dimensions} dimensions, the last 3 wide; got"
            f" {pixels.dtype} {list(pixels.shape)}"
        )
