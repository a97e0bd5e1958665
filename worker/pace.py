"""How long the running job will keep the GPU: from its own steps, and from earlier jobs of its shape.

An estimate for one decision only, when the next job may be claimed. Before the first step of a job of a shape
that this process never made, nothing is known, and nothing is guessed.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.jobs import Job

_SHAPES: Final = 64
Shape = tuple[int, int, int, int]
"""Width, height, frames, and how many files it was given: references lengthen every step."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What one finished job took."""

    head_seconds: float
    """Until its first step began."""
    step_seconds: float
    """Mean of its steps."""
    tail_seconds: float
    """From its last step to the end of its time on the GPU."""


@dataclass(slots=True)
class RunningJob:
    """One job on the GPU, as seen by its progress events."""

    shape: Shape
    steps: int
    known: Pace | None
    """Of the latest job of this shape."""
    clock: Callable[[], float]
    started: float = field(init=False)
    first_step_began: float | None = None
    last_step_ended: float | None = None
    steps_done: int = 0

    def __post_init__(self) -> None:
        self.started = self.clock()

    def note(self, event: ProgressEvent) -> None:
        """Learn from a progress event; only the steps of the loop tell anything."""
        if event.stage is not Stage.DENOISE or event.step <= self.steps_done:
            return
        now = self.clock()
        if self.first_step_began is None:
            self.first_step_began = now - event.seconds
        self.steps_done, self.last_step_ended = event.step, now

    @property
    def remaining_seconds(self) -> float | None:
        """What it still needs of the GPU, never negative; None while nobody can tell."""
        now = self.clock()
        tail = self.known.tail_seconds if self.known else 0.0
        if self.steps_done and self.first_step_began is not None and self.last_step_ended is not None:
            step = (self.last_step_ended - self.first_step_began) / self.steps_done
            left, since = (self.steps - self.steps_done) * step + tail, self.last_step_ended
        elif self.known is not None:
            left, since = self.known.head_seconds + self.steps * self.known.step_seconds + tail, self.started
        else:
            return None
        return max(0.0, left - (now - since))

    def pace(self) -> Pace | None:
        """Return what it took, at its end; None for a job without steps."""
        if self.first_step_began is None or self.last_step_ended is None:
            return None
        return Pace(
            self.first_step_began - self.started,
            (self.last_step_ended - self.first_step_began) / self.steps_done,
            self.clock() - self.last_step_ended,
        )


class Paces:
    """The latest pace of each shape that this process has made."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[Shape, Pace] = OrderedDict()

    def start(self, job: Job) -> RunningJob:
        """Begin to watch a job whose turn on the GPU has come."""
        shape = (job.width, job.height, job.frames, len(job.media))
        return RunningJob(shape, job.steps, self._known.get(shape), self._clock)

    def finish(self, running: RunningJob) -> None:
        """Remember what a job that ended well took."""
        pace = running.pace()
        if pace is None:
            return
        self._known[running.shape] = pace
        self._known.move_to_end(running.shape)
        while len(self._known) > _SHAPES:
            self._known.popitem(last=False)
