"""One packed sequence out of text, audio and video: row order, tags, rotary coordinates, clocks, patches.

The network has no notion of a modality beyond what this file hands it: a tag picks a row's modulation, three
coordinates its rotation, a clock its timestep. All coordinates are float64 and stay on the host; the rotary
table is made from them once per request. Knows nothing about sigmas, samplers or weights.
Sources: the layouts of ComfyUI 783545f and diffusers 0.42.1, equal after the cast to float32.

Letters: S packed rows, L text rows, Nv video rows, Na audio rows, M distinct timesteps, C channels,
T latent frames of lh × lw latents, Ta audio latents per channel.
"""

import math
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Self

import torch
from torch import Tensor

from queue_schemas.geometry import AUDIO_CHANNELS, PATCH, LatentShape

TIME_PER_PIXEL_FRAME = 5 / 3
"""Rotary time of one pixel frame: an audio latent is 1, and 40 of those pass while 24 frames do."""
PIXEL_FRAMES_PER_LATENT = (1, 4, 4, 4, 4)
"""Pixel frames that a latent frame spans, repeating: the first of each 17-frame clip stands alone."""
GRID_SPAN = 32.0
"""Rotary width of a square canvas' side, whatever its resolution."""


class Stream(StrEnum):
    """Where a row's embedding comes from."""

    TEXT = "text"
    AUDIO = "audio"
    VIDEO = "video"


class Tag(IntEnum):
    """Which modulation a row gets. Vision rows inside the text stream are tagged VIDEO."""

    VIDEO = 0
    TEXT = 1
    AUDIO = 2


class Clock(IntEnum):
    """Whose timestep a row runs at. Text runs at the video's."""

    VIDEO = 0
    AUDIO = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of packed rows of one stream."""

    stream: Stream
    start: int
    stop: int
    target: bool
    """Whether the sampler moves these rows; the others only condition them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayout:
    """Everything about one request's sequence that does not change between steps."""

    segments: tuple[Segment, ...]
    """In packed order, without gaps, from row 0 to S."""
    tags: Tensor
    """int64 [S], values of `Tag`."""
    clocks: Tensor
    """int64 [S], values of `Clock`."""
    position_ids: Tensor
    """float64 [S, 3]: t, h, w. Always on the host."""

    @property
    def num_rows(self) -> int:
        return self.segments[-1].stop

    def to(self, device: torch.device) -> Self:
        """Return the layout with what every step reads on `device`."""
        return replace(self, tags=self.tags.to(device), clocks=self.clocks.to(device))

    def target_rows(self, stream: Stream) -> slice:
        """Return where the rows that the sampler moves lie among the rows of `stream`; they are its last."""
        parts = [segment for segment in self.segments if segment.stream is stream]
        total = sum(segment.stop - segment.start for segment in parts)
        moved = sum(segment.stop - segment.start for segment in parts if segment.target)
        return slice(total - moved, total)


def pack_t2va(num_text: int, shape: LatentShape, *, text_tags: Tensor | None = None) -> PackedLayout:
    """Lay out [text | audio | video]; the media clock starts where the text ends, so prompts shift it.

    `text_tags` is int64 [L]; all TEXT unless given.
    """
    tags = torch.full((num_text,), Tag.TEXT) if text_tags is None else text_tags
    if tags.shape != (num_text,):
        raise ValueError(f"{num_text} text rows need as many tags; got a tensor of shape {list(tags.shape)}")
    audio_stop = num_text + shape.audio_tokens
    stop = audio_stop + shape.video_tokens
    return PackedLayout(
        segments=(
            Segment(stream=Stream.TEXT, start=0, stop=num_text, target=False),
            Segment(stream=Stream.AUDIO, start=num_text, stop=audio_stop, target=True),
            Segment(stream=Stream.VIDEO, start=audio_stop, stop=stop, target=True),
        ),
        tags=torch.cat(
            (
                tags.to(torch.int64),
                torch.full((shape.audio_tokens,), Tag.AUDIO),
                torch.full((shape.video_tokens,), Tag.VIDEO),
            )
        ),
        clocks=torch.cat(
            (
                torch.full((num_text,), Clock.VIDEO),
                torch.full((shape.audio_tokens,), Clock.AUDIO),
                torch.full((shape.video_tokens,), Clock.VIDEO),
            )
        ),
        position_ids=torch.cat(
            (
                text_positions(num_text),
                audio_positions(shape, origin=num_text),
                video_positions(shape, origin=num_text),
            )
        ),
    )


def text_positions(num_text: int) -> Tensor:
    """Return (i, 0, 0) for row i, float64 [L, 3]."""
    positions = torch.zeros(num_text, 3, dtype=torch.float64)
    positions[:, 0] = torch.arange(num_text, dtype=torch.float64)
    return positions


def audio_positions(shape: LatentShape, *, origin: float) -> Tensor:
    """Return float64 [Na, 3], all of the left channel first; they sit at the canvas' first and last w."""
    w = grid_axis(shape.width, shape=shape)
    t = origin + torch.arange(shape.audio, dtype=torch.float64)
    h = torch.zeros_like(t)
    return torch.cat([torch.stack((t, h, side.expand_as(t)), dim=-1) for side in (w[0], w[-1])])


def video_positions(shape: LatentShape, *, origin: float) -> Tensor:
    """Return float64 [Nv, 3], frame by frame, row by row."""
    pattern = torch.tensor(PIXEL_FRAMES_PER_LATENT, dtype=torch.float64)
    spans = TIME_PER_PIXEL_FRAME * pattern[torch.arange(shape.frames) % len(pattern)]  # [T]
    t = origin + spans.cumsum(0) - spans
    h, w = (grid_axis(side, shape=shape) for side in (shape.height, shape.width))
    return torch.cartesian_prod(t, h, w)


def grid_axis(side: int, *, shape: LatentShape) -> Tensor:
    """Return the coordinates of the patches along one side, float64 [side / 2].

    Sides count relative to the canvas' geometric mean and are centred; the right end is not among the points.
    """
    extent = side / math.sqrt(shape.height * shape.width)
    points = side // PATCH
    k = torch.arange(points, dtype=torch.float64)
    return ((1 - extent) / 2 + k * (extent / points)) * GRID_SPAN


def distinct_timesteps(*, t_video: float, t_audio: float) -> tuple[Tensor, Tensor]:
    """Return the distinct timesteps, float32 [M] ascending, and each clock's index into them, on the host."""
    return torch.tensor((t_video, t_audio), dtype=torch.float32).unique(return_inverse=True)  # as Clock


def row_timesteps(layout: PackedLayout, *, t_video: float, t_audio: float) -> tuple[Tensor, Tensor]:
    """Return the distinct timesteps, float32 [M] ascending, and each row's index into them, int64 [S].

    Timesteps are 1 - sigma: 1 is clean. Both results are on the layout's device; nothing waits for it.
    """
    device = layout.clocks.device
    timesteps, index = distinct_timesteps(t_video=t_video, t_audio=t_audio)
    # From pageable memory these copies are staged at once, hence safe.
    of_clock = index.to(device, non_blocking=True)
    return timesteps.to(device, non_blocking=True), of_clock[layout.clocks]


def pack_rows(layout: PackedLayout, *, text: Tensor, audio: Tensor, video: Tensor) -> Tensor:
    """Interleave the streams' rows, each [N, C] of one dtype, into packed order [S, C]."""
    rows = {Stream.TEXT: text, Stream.AUDIO: audio, Stream.VIDEO: video}
    taken = dict.fromkeys(Stream, 0)
    parts = []
    for segment in layout.segments:
        start = taken[segment.stream]
        taken[segment.stream] = start + segment.stop - segment.start
        parts.append(rows[segment.stream][start : taken[segment.stream]])
    return torch.cat(parts)


def stream_rows(layout: PackedLayout, packed: Tensor, stream: Stream) -> Tensor:
    """Return the rows of `stream` out of [S, ...], in packed order; a view when they are one run."""
    parts = [packed[part.start : part.stop] for part in layout.segments if part.stream is stream]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def patchify_video(latents: Tensor) -> Tensor:
    """Cut [C, T, lh, lw] into rows [T × lh/2 × lw/2, 4C]; feature = channel × 4 + patch row × 2 + column."""
    channels, _, height, width = latents.shape
    if height % PATCH or width % PATCH:
        raise ValueError(f"latent sides must be multiples of {PATCH}; got {height} × {width}")
    patches = latents.unflatten(3, (-1, PATCH)).unflatten(2, (-1, PATCH))  # [C, T, y, p, x, q]
    return patches.permute(1, 2, 4, 0, 3, 5).reshape(-1, channels * PATCH * PATCH)


def unpatchify_video(rows: Tensor, shape: LatentShape) -> Tensor:
    """Put rows [Nv, 4C] back together as [C, T, lh, lw]."""
    patches = rows.reshape(shape.frames, shape.height // PATCH, shape.width // PATCH, -1, PATCH, PATCH)
    return patches.permute(3, 0, 1, 4, 2, 5).reshape(-1, shape.frames, shape.height, shape.width)


def patchify_audio(latents: Tensor) -> Tensor:
    """Turn [2, C, Ta] into rows [2 × Ta, C], all of the left channel first."""
    return latents.transpose(1, 2).reshape(-1, latents.shape[1])


def unpatchify_audio(rows: Tensor) -> Tensor:
    """Turn rows [2 × Ta, C] back into [2, C, Ta]."""
    return rows.unflatten(0, (AUDIO_CHANNELS, -1)).transpose(1, 2).contiguous()
