"""What a reference becomes: the size it is encoded at, the frames that are kept and seen, tokens and rows.

Arithmetic only, so that a client can say what a picture costs without torch. Where ComfyUI and diffusers
differ the `Conventions` decide. Python's `round` (half to even) everywhere, as in both.
Sources: ComfyUI 783545f's MiniMax nodes, diffusers 0.42.1's MiniMax H3 blocks, Qwen3-VL's processor.
"""

import math
from collections.abc import Sequence
from typing import Final

from queue_schemas import geometry, limits
from queue_schemas.conventions import Conventions
from queue_schemas.geometry import LatentShape
from queue_schemas.references import KINDS, Kind

PICTURE_EDGE: Final = 2_048
SEEN_STRIDE: Final = 12
"""Frames between two that the text encoder sees: 2 a second."""
VISION_PATCH: Final = 16
VISION_SIDE: Final = 32
"""Pixels per side of one vision token: 2 × 2 patches of 16."""
_PICTURE_PIXELS: Final = (65_536, 16_777_216)
_CLIP_PIXELS: Final = (4_096, 25_165_824)
_PAIR_PIXELS: Final = (3_136, 12_845_056)


def picture_size(
    width: int, height: int, *, canvas: tuple[int, int], size: str, conventions: Conventions
) -> tuple[int, int]:
    """Return (width, height) at which a reference picture is encoded; `canvas` is the film's.

    Raises ValueError when its ratio lies outside 1:4 to 4:1.
    """
    _check_ratio(width, height)
    if conventions.picture_scaling == "short_edge_2048":
        scale = PICTURE_EDGE / min(width, height)
    elif size == "match":
        scale = min(1.0, math.sqrt(canvas[0] * canvas[1] / (width * height)))
    else:
        scale = min(1.0, PICTURE_EDGE / min(width, height))
    return _on_sides(width * scale), _on_sides(height * scale)


def clip_size(width: int, height: int, *, conventions: Conventions) -> tuple[int, int]:
    """Return (width, height) at which a reference clip is encoded: the canvas of its own shape.

    Raises ValueError when its ratio lies outside 1:4 to 4:1.
    """
    canvas = geometry.resolve_canvas(width, height)
    if conventions.small_clips_keep_size and width * height < canvas[0] * canvas[1]:
        return _on_sides(width), _on_sides(height)
    return canvas


def clip_frames(available: int, *, film_frames: int, conventions: Conventions) -> tuple[int, int]:
    """Return how many frames of a clip the text encoder samples from, and how many the VAE encodes.

    Both after the cut to the film's length. The second may exceed the first by what the VAE pads (diffusers
    asks for at least 22). Raises ValueError for clips too short to be a reference.
    """
    kept = min(available, film_frames)
    if conventions.clip_seen == "snapped":
        if kept < geometry.FRAME_OFFSET:
            raise ValueError(f"{kept} frames at 24 per second; a clip needs {geometry.FRAME_OFFSET}")
        snapped = kept - (kept - geometry.FRAME_OFFSET) % geometry.FRAME_STRIDE
        return snapped, snapped
    if kept <= SEEN_STRIDE:
        raise ValueError(f"{kept} frames at 24 per second; a clip needs {SEEN_STRIDE + 1}")
    clips = max(1, (kept - geometry.FRAME_OFFSET) // geometry.FRAME_STRIDE)
    return kept, clips * geometry.FRAME_STRIDE + geometry.FRAME_OFFSET


def seen_frames(num_frames: int) -> list[int]:
    """Return the indices of the frames that the text encoder sees."""
    return list(range(0, num_frames, SEEN_STRIDE))


def pair_seconds(num_frames: int) -> list[float]:
    """Return the time that each pair of seen frames is labelled with; an odd last one stands for itself."""
    times = [index / geometry.FPS for index in seen_frames(num_frames)]
    times += times[-1:] * (len(times) % 2)
    return [(first + second) / 2 for first, second in zip(times[::2], times[1::2], strict=True)]


def picture_grid(width: int, height: int, *, conventions: Conventions) -> tuple[int, int]:
    """Return (rows, columns) of 16-pixel patches in which the vision tower sees a picture."""
    bounds = _PICTURE_PIXELS if conventions.vision_bounds == "whole_clip" else _PAIR_PIXELS
    return _grid(width, height, pixels=width * height, frames=1, bounds=bounds)


def clip_grid(width: int, height: int, *, num_seen: int, conventions: Conventions) -> tuple[int, int]:
    """Return (rows, columns) of 16-pixel patches in which the vision tower sees each pair of frames."""
    if conventions.vision_bounds == "per_pair":
        return _grid(width, height, pixels=width * height, frames=1, bounds=_PAIR_PIXELS)
    wide, high = width, height
    if min(width, height) < VISION_SIDE:
        scale = max(VISION_SIDE / height, VISION_SIDE / width)
        wide, high = int(width * scale), int(height * scale)
    return _grid(
        wide, high, pixels=num_seen * wide * high, frames=round(num_seen / 2) * 2, bounds=_CLIP_PIXELS
    )


def grid_tokens(grid: tuple[int, int]) -> int:
    """Return the text rows of one vision block without its start and end token."""
    return grid[0] * grid[1] // 4


def visual_shape(width: int, height: int, *, frames: int = 1) -> LatentShape:
    """Return the latent sizes of an encoded picture (1 frame) or clip, without sound."""
    return LatentShape(
        frames=1 if frames == 1 else geometry.latent_frames(frames),
        height=height // geometry.SPATIAL_RATIO,
        width=width // geometry.SPATIAL_RATIO,
        audio=0,
    )


def sound_latents(samples: int, *, conventions: Conventions) -> int:
    """Return the audio latents per channel of a sound of `samples` at 32 kHz."""
    if conventions.sound_remainder == "centre_crop":
        return samples // geometry.AUDIO_HOP_SAMPLES
    return -(-samples // geometry.AUDIO_HOP_SAMPLES)


def packed_order(kinds: Sequence[Kind], *, conventions: Conventions) -> list[int]:
    """Return the references' places in the order in which they are labelled and packed."""
    places = range(len(kinds))
    if conventions.reference_order == "request":
        return list(places)
    return sorted(places, key=lambda place: KINDS.index(kinds[place]))


def _grid(width: int, height: int, *, pixels: int, frames: int, bounds: tuple[int, int]) -> tuple[int, int]:
    """Round both sides to whole tokens; scale by `pixels` where `frames` of that size leave the bounds."""
    least, most = bounds
    side = VISION_SIDE
    wide, high = round(width / side) * side, round(height / side) * side
    if frames * wide * high > most:
        factor = math.sqrt(pixels / most)
        wide, high = (max(side, math.floor(n / factor / side) * side) for n in (width, height))
    elif frames * wide * high < least:
        factor = math.sqrt(least / pixels)
        wide, high = (math.ceil(n * factor / side) * side for n in (width, height))
    return high // VISION_PATCH, wide // VISION_PATCH


def _check_ratio(width: int, height: int) -> None:
    if max(width, height) > limits.ASPECT_RATIO_MAX * min(width, height):
        raise ValueError(f"{width}x{height} is longer than 4:1")


def _on_sides(length: float) -> int:
    side = limits.SIDE_MULTIPLE
    return max(side, round(length / side) * side)
