"""Latents as rows and back: 2 × 2 patches of a video frame, single latents of a sound.

Shapes: T latent frames of lh × lw latents, C channels; Ta audio latents per channel; N rows.
"""

from torch import Tensor

from queue_schemas.geometry import AUDIO_CHANNELS, PATCH, LatentShape


def patchify_video(latents: Tensor) -> Tensor:
    """Cut [C, T, lh, lw] into rows [T × lh/2 × lw/2, 4C]; feature = channel × 4 + patch row × 2 + column."""
    channels, _, height, width = latents.shape
    if height % PATCH or width % PATCH:
        raise ValueError(f"latent sides must be multiples of {PATCH}; got {height} × {width}")
    patches = latents.unflatten(3, (-1, PATCH)).unflatten(2, (-1, PATCH))  # [C, T, y, p, x, q]
    return patches.permute(1, 2, 4, 0, 3, 5).reshape(-1, channels * PATCH * PATCH)


def unpatchify_video(rows: Tensor, shape: LatentShape) -> Tensor:
    """Put rows [N, 4C] back together as [C, T, lh, lw]."""
    patches = rows.reshape(shape.frames, shape.height // PATCH, shape.width // PATCH, -1, PATCH, PATCH)
    return patches.permute(3, 0, 1, 4, 2, 5).reshape(-1, shape.frames, shape.height, shape.width)


def patchify_audio(latents: Tensor) -> Tensor:
    """Turn [2, C, Ta] into rows [2 × Ta, C], all of the left channel first."""
    return latents.transpose(1, 2).reshape(-1, latents.shape[1])


def unpatchify_audio(rows: Tensor) -> Tensor:
    """Turn rows [2 × Ta, C] back into [2, C, Ta]."""
    return rows.unflatten(0, (AUDIO_CHANNELS, -1)).transpose(1, 2).contiguous()
