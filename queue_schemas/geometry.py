"""Frame grid, latent sizes, token counts and track length: the arithmetic every part of the system shares.

Pixel frames run at 24 fps in lengths of 17n + 5; a canvas side is a multiple of 32 (VAE 16 × patch 2).
Sources: diffusers 0.42.1 and ComfyUI, which agree here. Knows no prompts and no files.

Letters: F pixel frames, T video latent frames, Ta audio latents per channel, lh × lw latent height and width.
"""

import math
from dataclasses import dataclass

from queue_schemas import limits

FPS = 24
FRAME_STRIDE = 17
FRAME_OFFSET = 5
SPATIAL_RATIO = 16
"""Pixels per latent side."""
PATCH = 2
"""Latents per transformer token side."""
VIDEO_LATENT_CHANNELS = 24
AUDIO_LATENT_CHANNELS = 32
AUDIO_CHANNELS = 2
SAMPLE_RATE_HZ = 32_000
AUDIO_HOP_SAMPLES = 800
AUDIO_LATENTS_PER_SECOND = SAMPLE_RATE_HZ // AUDIO_HOP_SAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """Sizes of one generation's latent pair: video [1, 24, T, lh, lw] and audio [2, 32, Ta]."""

    frames: int
    height: int
    width: int
    audio: int

    @property
    def video_tokens(self) -> int:
        """Packed rows of the target video: one per 2 × 2 latents of a latent frame."""
        return self.frames * (self.height // PATCH) * (self.width // PATCH)

    @property
    def audio_tokens(self) -> int:
        """Packed rows of the target audio, both channels."""
        return AUDIO_CHANNELS * self.audio


def on_grid(frames: int) -> bool:
    """Say whether the video VAE can decode exactly `frames` pixel frames (17n + 5)."""
    return frames % FRAME_STRIDE == FRAME_OFFSET


def grid_neighbours(frames: int) -> tuple[int, int]:
    """Return the grid lengths just below and above `frames`, both inside the accepted range."""
    below = frames - (frames - FRAME_OFFSET) % FRAME_STRIDE
    low = min(max(below, limits.FRAMES_MIN), limits.FRAMES_MAX)
    high = min(max(below + FRAME_STRIDE, limits.FRAMES_MIN), limits.FRAMES_MAX)
    return low, high


def frames_for(seconds: float) -> int:
    """Return the smallest grid length of at least `seconds` of film; 15 s gives 362 frames."""
    wanted = math.ceil(seconds * FPS - 1e-9)
    return max(limits.FRAMES_MIN, wanted + (FRAME_OFFSET - wanted) % FRAME_STRIDE)


def latent_frames(frames: int) -> int:
    """Return T for a grid length: 17n + 5 pixel frames are 5n + 2 latent frames."""
    return (frames - FRAME_OFFSET) // FRAME_STRIDE * 5 + 2


def audio_latents(frames: int) -> int:
    """Return Ta: 40 latents a second, rounded half to even as every reference does."""
    return round(frames / FPS * AUDIO_LATENTS_PER_SECOND)


def latent_shape(*, frames: int, height: int, width: int) -> LatentShape:
    """Return the latent sizes of a film of `frames` frames of height × width pixels."""
    return LatentShape(
        frames=latent_frames(frames),
        height=height // SPATIAL_RATIO,
        width=width // SPATIAL_RATIO,
        audio=audio_latents(frames),
    )


def track_samples(frames: int) -> int:
    """Return the samples per channel of a finished track: as long as the film, to the nearest sample."""
    return round(frames * SAMPLE_RATE_HZ / FPS)


def resolve_canvas(aspect_width: float, aspect_height: float) -> tuple[int, int]:
    """Return (width, height) of the model's own canvas for a ratio: short edge 768, at most 768 × 1344.

    Raises ValueError when the ratio lies outside 1:4 to 4:1.
    """
    ratio = aspect_width / aspect_height
    if not 1 / limits.ASPECT_RATIO_MAX <= ratio <= limits.ASPECT_RATIO_MAX:
        raise ValueError(f"aspect ratio {aspect_width}:{aspect_height} lies outside 1:4 to 4:1")
    width, height = (768.0 * ratio, 768.0) if ratio >= 1 else (768.0, 768.0 / ratio)
    if width * height > limits.TRAINED_PIXELS_MAX:
        scale = math.sqrt(limits.TRAINED_PIXELS_MAX / (width * height))
        width, height = width * scale, height * scale
    side = limits.SIDE_MULTIPLE
    return max(side, round(width / side) * side), max(side, round(height / side) * side)
