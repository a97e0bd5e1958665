"""Clips: how a film's latents fall into decoder calls, and which of their frames are shown.

The decoder always sees 7 latents, 28 frames, of which the first 3 of each 20 are padding that training put
there. Clips advance by 5 latents, so their last 5 shown frames are shown again by the next clip, which fades
in over them. Knows nothing about space.

Letters: T latent frames of the film, n clips; 17n + 5 frames at T = 5n + 2.
Sources: diffusers 0.42.1; for T = 1 and T = 2, which it refuses, ComfyUI 783545f.
"""

import math
from dataclasses import dataclass

from model.config import VideoVaeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipPlan:
    """Decoder calls of one film, and its length."""

    starts: tuple[int, ...]
    """First latent of each clip; latents past the film's end repeat its last one."""
    length: int
    """Latents of each clip."""
    main: slice
    """Frames of a decoded clip that are shown, the first of them faded in over the previous clip's tail."""
    tail: slice
    """Frames that the next clip fades in over; shown as they are after the last clip."""
    frames: int
    """Frames of the film; what the parts hold beyond them was decoded from repeated latents."""


def plan_clips(num_latents: int, config: VideoVaeConfig) -> ClipPlan:
    """Plan the decode of a film of T = `num_latents` latent frames."""
    if num_latents < 1:
        raise ValueError("a film has one latent frame at least")
    patch = config.patch_frames
    group = math.ceil(config.clip_frames / patch)  # 5 latents show 17 frames
    shared = -config.token_drop % group  # 2 latents of the next group end a clip
    hidden = -config.clip_frames % patch  # 3 frames of padding lead every group
    main = slice(hidden, group * patch)
    tail = slice(group * patch + hidden, (group + shared) * patch)
    if num_latents == 1:
        # One picture: the only latent, alone; its last frame is the shown one.
        return ClipPlan(starts=(0,), length=1, main=main, tail=tail, frames=patch - hidden)

    padding = -(num_latents + config.token_drop) % group
    clips = (num_latents + config.token_drop + padding) // group - 1
    if clips < 1:
        clips, padding = 1, padding + group
    shown = clips * config.clip_frames + (tail.stop - tail.start)
    # The first latent of a group shows one frame, the others four.
    extra = sum(patch - hidden if (num_latents + k) % group == 0 else patch for k in range(padding))
    return ClipPlan(
        starts=tuple(group * i for i in range(clips)),
        length=group + shared,
        main=main,
        tail=tail,
        frames=shown - extra,
    )
