"""Read where many queue entries stand, in one round trip per thousand.

Redis forgets ended entries after a while, and everything when it loses its data: an unknown entry has no
status here, and only the store's manifest can say how it ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import redis
import rq.job
from rq.utils import as_text

from broker import keys
from broker.connection import queue_errors
from broker.progress import PROGRESS_TTL_SECONDS, parse_progress
from queue_schemas.environment import DEFAULT_FLEET
from queue_schemas.events import JobStatus, ProgressEvent

_BATCH: Final = 1_000
_SCANNED: Final = 1_000  # keys per round trip when entries are looked for by the start of their id
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
    progress_age_seconds: float | None = field(default=None, compare=False)
    """How long ago the last progress was written, by the server's clock; None without any."""


def read_states(
    connection: redis.Redis, entry_ids: Sequence[str], *, fleet: str = DEFAULT_FLEET
) -> list[RunState]:
    """Return the state of every entry, in the order asked. Raises QueueUnavailableError."""
    found: list[RunState] = []
    with queue_errors(connection):
        for start in range(0, len(entry_ids), _BATCH):
            found += _read_batch(connection, entry_ids[start : start + _BATCH], fleet=fleet)
    return found


def find_entries(connection: redis.Redis, start: str) -> list[str]:
    """Return the ids of all entries that begin so, sorted. Looks at every key: for what people type."""
    pattern = keys.entry_key(keys.check_entry_id(start)) + "*"
    prefix = len(keys.entry_key(""))
    with queue_errors(connection):
        found = {as_text(key)[prefix:] for key in connection.scan_iter(match=pattern, count=_SCANNED)}
    return sorted(found)


def _read_batch(connection: redis.Redis, entry_ids: Sequence[str], *, fleet: str) -> list[RunState]:
    with connection.pipeline(transaction=False) as pipeline:
        for entry in entry_ids:
            pipeline.hget(keys.entry_key(entry), "status")
            pipeline.hgetall(keys.progress_key(fleet, entry))
            pipeline.pttl(keys.progress_key(fleet, entry))
        # A key of a foreign type answers with an error of its own; it must not hide the other entries.
        answers = pipeline.execute(raise_on_error=False)
    return [
        RunState(
            entry_id=entry,
            status=_status(status),
            progress=_progress(progress),
            progress_age_seconds=_age_seconds(time_left),
        )
        for entry, status, progress, time_left in zip(
            entry_ids, answers[::3], answers[1::3], answers[2::3], strict=True
        )
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


def _age_seconds(time_left_ms: object) -> float | None:
    """Every progress gets the same time to live, so what is left of it tells its age."""
    if not isinstance(time_left_ms, int) or time_left_ms < 0:
        return None
    return max(0.0, PROGRESS_TTL_SECONDS - time_left_ms / 1_000)
