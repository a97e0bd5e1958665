"""Read where many queue entries stand, in one round trip per thousand.

Redis forgets ended entries after a while, and everything when it loses its data: an unknown entry has no
status here, and only the store's manifest can say how it ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import redis
import rq.job

from broker import keys
from broker.connection import queue_errors
from broker.progress import parse_progress
from queue_schemas.environment import DEFAULT_FLEET
from queue_schemas.events import JobStatus, ProgressEvent

_BATCH: Final = 1_000
STATUS_OF_RQ: Final = {
    rq.job.JobStatus.CREATED: JobStatus.QUEUED,
    rq.job.JobStatus.QUEUED: JobStatus.QUEUED,
    rq.job.JobStatus.DEFERRED: JobStatus.QUEUED,
    rq.job.JobStatus.SCHEDULED: JobStatus.QUEUED,
    rq.job.JobStatus.RATE_LIMITED: JobStatus.QUEUED,
    rq.job.JobStatus.READY_TO_ENQUEUE: JobStatus.QUEUED,
    rq.job.JobStatus.STARTED: JobStatus.RUNNING,
    rq.job.JobStatus.FINISHED: JobStatus.SUCCEEDED,
    rq.job.JobStatus.FAILED: JobStatus.FAILED,
    rq.job.JobStatus.STOPPED: JobStatus.CANCELLED,
    rq.job.JobStatus.CANCELED: JobStatus.CANCELLED,
}
"""All eleven states of rq 3.0.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where one queue entry stands."""

    entry_id: str
    status: JobStatus | None
    """None when Redis knows no such entry, or holds one that cannot be read."""
    progress: ProgressEvent | None


def read_states(
    connection: redis.Redis, entry_ids: Sequence[str], *, fleet: str = DEFAULT_FLEET
) -> list[RunState]:
    """Return the state of every entry, in the order asked. Raises QueueUnavailableError."""
    found: list[RunState] = []
    with queue_errors(connection):
        for start in range(0, len(entry_ids), _BATCH):
            found += _read_batch(connection, entry_ids[start : start + _BATCH], fleet=fleet)
    return found


def _read_batch(connection: redis.Redis, entry_ids: Sequence[str], *, fleet: str) -> list[RunState]:
    with connection.pipeline(transaction=False) as pipeline:
        for entry in entry_ids:
            pipeline.hget(keys.entry_key(entry), "status")
            pipeline.hgetall(keys.progress_key(fleet, entry))
        # A key of a foreign type answers with an error of its own; it must not hide the other entries.
        answers = pipeline.execute(raise_on_error=False)
    return [
        RunState(entry_id=entry, status=_status(status), progress=_progress(progress))
        for entry, status, progress in zip(entry_ids, answers[::2], answers[1::2], strict=True)
    ]


def _status(answer: object) -> JobStatus | None:
    if not isinstance(answer, bytes):
        return None
    try:
        return STATUS_OF_RQ[rq.job.JobStatus(answer.decode("ascii", "replace"))]
    except ValueError:
        return None


def _progress(answer: object) -> ProgressEvent | None:
    return parse_progress(answer) if isinstance(answer, dict) else None
