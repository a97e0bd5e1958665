"""What the client hands out: handles of runs and sweeps, where they stand, what they left behind.

Values only; `client.py` makes them from queue and storage.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.events import JobError, JobStatus, ProgressEvent
from queue_schemas.jobs import FL2VAJob, Ref2VAJob, T2VAJob
from queue_schemas.results import Manifest
from queue_schemas.runs import RunKey

AnyJob = T2VAJob | FL2VAJob | Ref2VAJob


class Outcome(StrEnum):
    """What submitting a run did."""

    QUEUED = "queued"
    JOINED = "joined"
    """It was queued or running already."""
    DONE = "done"
    """It had succeeded before; nothing was queued."""
    ENDED = "ended"
    """It had failed or was cancelled, and was not asked for again; only when resuming a sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHandle:
    """One generation of one run."""

    run_id: str
    generation: int
    sweep_id: str | None
    label: str = ""
    outcome: Outcome | None = None
    """None when it was looked up, not submitted."""
    job: AnyJob | None = None
    key: RunKey = field(default_factory=RunKey)
    notes: tuple[str, ...] = ()
    """What a person should know: no node for it, an untrained canvas."""

    @property
    def runs(self) -> tuple["RunHandle", ...]:
        return (self,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepHandle:
    """The runs that were asked for together, in order."""

    sweep_id: str
    runs: tuple[RunHandle, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Where one generation of a run stands."""

    run_id: str
    generation: int
    status: JobStatus
    progress: ProgressEvent | None = None
    error: JobError | None = None
    manifest: Manifest | None = None
    note: str | None = None
    """What is odd about it: its node is gone, or the node stores elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run that has ended left behind."""

    run_id: str
    status: JobStatus
    manifest: Manifest
    record: BenchmarkRecord | None
    """None when the attempt wrote none."""
    video: str | None
    """Path or link of the film; None unless it succeeded."""
    benchmark: str | None
    log: str | None = None
    """What its last attempt logged; None where it succeeded, or died with its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A reference in storage, under the hash of its content."""

    key: str
    sha256: str
    size_bytes: int
    kind: str
    """`image`, `video` or `audio`."""
    is_new: bool
    """False when the same content lay there already."""
