"""Tiles: where they lie along one axis, and how their overlaps become one picture.

The one thing to know: two seam rules exist and give different pixels. `raw` fades each tile in over its
neighbours as they were decoded (MiniMax's own code, diffusers 0.42.1); `blended` over its neighbours as they
already look after their own fading (ComfyUI 19315e86), which keeps seams continuous where overlaps meet. They
differ where a horizontal overlap crosses a vertical one, and where two overlaps of one axis overlap each
other. Knows nothing about time or about how a tile is decoded.

Shapes: one tile [3, F, th, tw], the canvas [3, F, H, W], all in pixels.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Seam = Literal["raw", "blended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTiles:
    """Tiles along one axis, in pixels: all of one length, `overlaps[i]` shared by tiles i and i + 1."""

    starts: tuple[int, ...]
    length: int
    overlaps: tuple[int, ...]

    @property
    def kept(self) -> tuple[int, ...]:
        """Leading pixels of each tile that reach the canvas; the rest is the next tile's to paint."""
        return tuple(self.length - overlap for overlap in (*self.overlaps, 0))

    @property
    def extent(self) -> int:
        """Pixels that all tiles cover together."""
        return self.starts[-1] + self.length


def split_axis(length: int, *, tile: int, overlap: int, grid: int) -> AxisTiles:
    """Lay the fewest tiles over `length` pixels that overlap by `overlap` at least; slack widens overlaps.

    `length`, `tile` and `overlap` are multiples of `grid`, the pixels of a latent, and so are all starts. A
    least overlap that a small tile cannot have is clamped, for with it no number of tiles would ever cover
    the axis.
    """
    if tile < grid or tile % grid or length < grid or length % grid:
        raise ValueError(f"a tile of {tile} on {length} pixels: both must be positive multiples of {grid}")
    if tile >= length:
        return AxisTiles(starts=(0,), length=length, overlaps=())
    overlap = min(overlap, tile - grid)
    count = math.ceil((length - overlap) / (tile - overlap))
    overlaps = [overlap] * (count - 1)
    slack = tile * count - overlap * (count - 1) - length
    for i in range(slack // grid):
        overlaps[i % (count - 1)] += grid
    starts = [0]
    for shared in overlaps:
        starts.append(starts[-1] + tile - shared)
    return AxisTiles(starts=tuple(starts), length=tile, overlaps=tuple(overlaps))


def fade_in(new: Tensor, old: Tensor, *, dim: int) -> None:
    """Fade the start of `new` along `dim`, in place, from `old` to itself over the whole of `old`.

    The weight of `new` is k / e for k = 0 .. e - 1: its first slice is all `old`, and it never quite reaches
    1.
    """
    extent = old.shape[dim]
    shape = [1] * new.ndim
    shape[dim] = extent
    weight = (torch.arange(extent, device=new.device, dtype=new.dtype) / extent).view(shape)
    start = new.narrow(dim, 0, extent)
    start.copy_(old * (1 - weight) + start * weight)


def stitch(tiles: Iterator[Tensor], *, rows: AxisTiles, columns: AxisTiles, seam: Seam) -> Tensor:
    """Paint `tiles`, given row by row, into one canvas [3, F, H, W]. Their memory is overwritten.

    Only the strips that the next tiles fade over are kept, so tiles may be decoded as they are asked for.
    """
    canvas: Tensor | None = None
    above: Sequence[Tensor] = ()
    for y, kept_rows, below in zip(rows.starts, rows.kept, (*rows.overlaps, 0), strict=True):
        row = [next(tiles) for _ in columns.starts]
        painted = _fade_row(row, above, columns=columns, below=below, seam=seam)
        if canvas is None:
            first = painted.tiles[0]
            canvas = first.new_empty(*first.shape[:-2], rows.extent, columns.extent)
        for x, kept, tile in zip(columns.starts, columns.kept, painted.tiles, strict=True):
            canvas[..., y : y + kept_rows, x : x + kept] = tile[..., :kept_rows, :kept]
        above = painted.bottoms
    assert canvas is not None  # an axis has one tile at least
    return canvas


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    tiles: Sequence[Tensor]
    bottoms: Sequence[Tensor]  # what the tiles of the next row fade over, one strip per column


def _fade_row(
    tiles: Sequence[Tensor], above: Sequence[Tensor], *, columns: AxisTiles, below: int, seam: Seam
) -> _Row:
    """Fade each tile over the strip above it, then over the strip to its left, in place."""
    bottoms: list[Tensor] = []
    left: Tensor | None = None
    for j, (tile, right) in enumerate(zip(tiles, (*columns.overlaps, 0), strict=True)):
        edges = _edges(tile, right=right, below=below)
        if seam == "raw":
            edges = tuple(edge.clone() for edge in edges)  # as decoded, before this tile is faded
        if above and above[j].shape[-2]:
            fade_in(tile, above[j], dim=-2)
        if left is not None and left.shape[-1]:
            fade_in(tile, left, dim=-1)
        left, bottom = edges
        bottoms.append(bottom)
    if seam == "blended":
        bottoms = _joined_strips(bottoms, columns)
    return _Row(tiles=tiles, bottoms=bottoms)


def _edges(tile: Tensor, *, right: int, below: int) -> tuple[Tensor, ...]:
    """Return views of the last `right` columns and of the last `below` rows; either may be empty."""
    height, width = tile.shape[-2:]
    return tile[..., width - right :], tile[..., height - below :, :]


def _joined_strips(strips: Sequence[Tensor], columns: AxisTiles) -> list[Tensor]:
    """Paint bottom strips into one as wide as the canvas, and cut it where the tiles of the next row lie."""
    wide = torch.cat([strip[..., :kept] for strip, kept in zip(strips, columns.kept, strict=True)], dim=-1)
    return [wide[..., x : x + columns.length] for x in columns.starts]
