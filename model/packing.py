"""One packed sequence out of text, conditions and the film's rows: order, tags, clocks, coordinates.

    [text | keyframes or references, in order | audio | video]

The network has no notion of a modality beyond what this file hands it: a tag picks a row's modulation, three
coordinates its rotation, a clock its timestep. Within a stream the rows that the sampler moves come last, and
a clip's sound stands before its pictures. Knows nothing about samplers or weights.
Sources: the layouts of ComfyUI 783545f and diffusers 0.42.1, equal after the cast to float32.

Letters: S packed rows, L text rows, Nv video rows, Na audio rows, M distinct timesteps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Final, Self

import torch
from torch import Tensor

from model.coordinates import (
    TIME_PER_PIXEL_FRAME,
    film_positions,
    film_span,
    sound_positions,
    still_positions,
    text_positions,
)
from queue_schemas.geometry import LatentShape

CONDITION_TIMESTEP: Final = 0.999
"""How clean keyframes and reference pictures are, in data and in label."""
SOUND_CONDITION_TIMESTEP: Final = 1.0


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
    SEEN = 2
    """Keyframes and reference pictures."""
    HEARD = 3
    """Reference sounds."""


class Role(StrEnum):
    """What a condition is to the film, which decides its time and its grid."""

    FIRST_FRAME = "first_frame"
    LAST_FRAME = "last_frame"
    PICTURE = "image"
    CLIP = "video"
    SOUND = "audio"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionShape:
    """One keyframe or reference, by the latents that it is given as."""

    role: Role
    shape: LatentShape
    """Without frames for a sound, without audio for what is silent."""

    @property
    def span(self) -> float:
        """By how much it moves the clock of what comes after it."""
        match self.role:
            case Role.PICTURE:
                return 1.0
            case Role.SOUND:
                return float(self.shape.audio)
            case Role.CLIP:
                return max(float(self.shape.audio), film_span(self.shape.frames))
        return 0.0  # keyframes lie within the film


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of packed rows of one stream."""

    stream: Stream
    start: int
    stop: int
    condition: int | None = None
    """Which keyframe or reference they belong to, counted in packed order."""

    @property
    def num_rows(self) -> int:
        return self.stop - self.start

    @property
    def target(self) -> bool:
        """Whether the sampler moves these rows; the others only condition them."""
        return self.stream is not Stream.TEXT and self.condition is None

    @property
    def clock(self) -> Clock:
        if self.stream is Stream.AUDIO:
            return Clock.AUDIO if self.target else Clock.HEARD
        return Clock.VIDEO if self.condition is None else Clock.SEEN


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

    @property
    def clocks_in_use(self) -> tuple[Clock, ...]:
        """Those that some row runs at, ascending."""
        return tuple(sorted({segment.clock for segment in self.segments}))

    def to(self, device: torch.device) -> Self:
        """Return the layout with what every step reads on `device`."""
        return replace(self, tags=self.tags.to(device), clocks=self.clocks.to(device))

    def target_rows(self, stream: Stream) -> slice:
        """Return where the rows that the sampler moves lie among the rows of `stream`; they are its last."""
        parts = [segment for segment in self.segments if segment.stream is stream]
        total = sum(segment.num_rows for segment in parts)
        return slice(total - sum(segment.num_rows for segment in parts if segment.target), total)

    def condition_rows(self, number: int) -> range:
        """Return the packed rows of a condition; empty where it has none."""
        own = [segment for segment in self.segments if segment.condition == number and segment.num_rows]
        return range(own[0].start, own[-1].stop) if own else range(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A segment before its place is known."""

    stream: Stream
    positions: Tensor
    condition: int | None = None


def pack(
    num_text: int,
    shape: LatentShape,
    *,
    text_tags: Tensor | None = None,
    conditions: Sequence[ConditionShape] = (),
) -> PackedLayout:
    """Lay out a request; the media clock starts where the text ends, so prompts shift it.

    `text_tags` is int64 [L]; all TEXT unless given. References move the film's own origin, keyframes not.
    """
    tags = torch.full((num_text,), Tag.TEXT) if text_tags is None else text_tags
    if tags.shape != (num_text,):
        raise ValueError(f"{num_text} text rows need as many tags; got a tensor of shape {list(tags.shape)}")
    origins = [float(num_text)]
    for condition in conditions:
        origins.append(origins[-1] + condition.span)
    *starts, origin = origins
    parts = [_Part(stream=Stream.TEXT, positions=text_positions(num_text))]
    for number, (condition, start) in enumerate(zip(conditions, starts, strict=True)):
        parts += _condition_parts(condition, number, start=start, film=shape, film_origin=origin)
    parts += [
        _Part(stream=Stream.AUDIO, positions=sound_positions(shape.audio, canvas=shape, origin=origin)),
        _Part(stream=Stream.VIDEO, positions=film_positions(shape, origin=origin)),
    ]
    segments = tuple(_segments(parts))
    media_tags = [torch.full((each.num_rows,), _TAGS[each.stream]) for each in segments[1:]]
    return PackedLayout(
        segments=segments,
        tags=torch.cat((tags.to(torch.int64), *media_tags)),
        clocks=torch.cat([torch.full((each.num_rows,), each.clock) for each in segments]),
        position_ids=torch.cat([part.positions for part in parts]),
    )


_TAGS = {Stream.VIDEO: Tag.VIDEO, Stream.AUDIO: Tag.AUDIO}


def _condition_parts(
    condition: ConditionShape, number: int, *, start: float, film: LatentShape, film_origin: float
) -> Iterator[_Part]:
    """Yield a condition's rows, sound first, in the order in which they are packed."""
    role, shape = condition.role, condition.shape
    if shape.audio:
        canvas = film if role is Role.SOUND else shape
        sound = sound_positions(shape.audio, canvas=canvas, origin=start)
        yield _Part(stream=Stream.AUDIO, positions=sound, condition=number)
    match role:
        case Role.FIRST_FRAME:
            positions = still_positions(shape, time=film_origin)
        case Role.LAST_FRAME:  # one pixel frame before the film's end
            positions = still_positions(
                shape, time=film_origin + film_span(film.frames) - TIME_PER_PIXEL_FRAME
            )
        case Role.PICTURE:
            positions = still_positions(shape, time=start)
        case Role.CLIP:
            positions = film_positions(shape, origin=start)
        case Role.SOUND:
            return
    yield _Part(stream=Stream.VIDEO, positions=positions, condition=number)


def _segments(parts: Sequence[_Part]) -> Iterator[Segment]:
    start = 0
    for part in parts:
        stop = start + len(part.positions)
        yield Segment(stream=part.stream, start=start, stop=stop, condition=part.condition)
        start = stop


def distinct_timesteps(clocks: Sequence[Clock], *, t_video: float, t_audio: float) -> tuple[Tensor, Tensor]:
    """Return the distinct timesteps of these clocks, float32 [M] ascending, on the host.

    And each clock's index into them, int64 [4]; 0 for a clock that is not among them.
    """
    told = {
        Clock.VIDEO: t_video,
        Clock.AUDIO: t_audio,
        Clock.SEEN: max(t_video, CONDITION_TIMESTEP),
        Clock.HEARD: SOUND_CONDITION_TIMESTEP,
    }
    values = torch.tensor([told[clock] for clock in clocks], dtype=torch.float32)
    timesteps, index = values.unique(return_inverse=True)
    of_clock = torch.zeros(len(Clock), dtype=torch.int64)
    of_clock[list(clocks)] = index
    return timesteps, of_clock


def row_timesteps(layout: PackedLayout, *, t_video: float, t_audio: float) -> tuple[Tensor, Tensor]:
    """Return the distinct timesteps, float32 [M] ascending, and each row's index into them, int64 [S].

    Timesteps are 1 - sigma: 1 is clean. Both results are on the layout's device; nothing waits for it.
    """
    device = layout.clocks.device
    timesteps, index = distinct_timesteps(layout.clocks_in_use, t_video=t_video, t_audio=t_audio)
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
        taken[segment.stream] = start + segment.num_rows
        parts.append(rows[segment.stream][start : taken[segment.stream]])
    return torch.cat(parts)


def stream_rows(layout: PackedLayout, packed: Tensor, stream: Stream) -> Tensor:
    """Return the rows of `stream` out of [S, ...], in packed order; a view when they are one run."""
    parts = [packed[part.start : part.stop] for part in layout.segments if part.stream is stream]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
