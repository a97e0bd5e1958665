"""How an entry ends or goes on after an attempt that brought no film: tried again, dead letter or cancelled.

The job process, its puller (when that process died) and the janitor (when the puller died too) all come here,
each with a lease of its own; whoever has lost it changes nothing. The manifest is written before the queue is
told, so a crash in between leaves a lease to run out, and whoever then comes finds the manifest.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import redis

from broker.keys import parse_entry_id
from broker.lease import Lease, Requeued, renew, requeue, settle
from broker.letters import DeadLetter
from queue_schemas.benchmark import OutputFile
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError, JobStatus
from queue_schemas.results import Manifest
from storage.base import ArtifactStore
from worker.attempt import create_manifest, read_manifest
from worker.leasing import LeaseTimes

log = logging.getLogger(__name__)

CANCELLED: Final = JobError(code=ErrorCode.CANCELLED, message="cancelled", retryable=False)


class Ended(StrEnum):
    """What became of the entry."""

    SETTLED = "settled"
    """It has a manifest, and the queue knows."""
    AGAIN = "again"
    LOST = "lost"
    """The lease was somebody else's by now; nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """An attempt that ended without a film."""

    lease: Lease
    error: JobError
    counts: bool = True
    files: Mapping[str, OutputFile]
    """What it has stored: request, record and log."""
    log: str = ""
    """The end of its log, where that is at hand."""


def end_failed_attempt(
    connection: redis.Redis, attempt: FailedAttempt, *, store: ArtifactStore, fleet: str, times: LeaseTimes
) -> Ended:
    """Queue the entry again, or end it. Raises redis-py's and the store's errors, the lease still held."""
    lease = attempt.lease
    if not renew(connection, lease, seconds=times.lease_seconds):
        return Ended.LOST
    run_id, generation = parse_entry_id(lease.entry)
    manifest = read_manifest(store, run_id, generation)
    if manifest is not None:  # it was killed between the manifest and the queue's hearing of it
        return _settle(connection, lease, status=manifest.status, fleet=fleet)
    counts = attempt.counts or lease.number >= times.max_claims
    if attempt.error.code is not ErrorCode.CANCELLED and (lease.used < times.max_attempts or not counts):
        delay = times.backoff(lease.number)
        outcome = requeue(connection, lease, delay_seconds=delay, counts=counts, fleet=fleet)
        if outcome is Requeued.LOST:
            return Ended.LOST
        if outcome is Requeued.DONE:
            log.warning("entry %s: tried again in %.1f s: %.300s", lease.entry, delay, attempt.error.message)
            return Ended.AGAIN
        error = CANCELLED
    else:
        error = attempt.error
    manifest = _commit(store, attempt, run_id=run_id, generation=generation, error=error)
    letter = None
    if manifest.status is JobStatus.FAILED:
        reason = f"{error.code}: {error.message}"
        letter = DeadLetter(entry=lease.entry, attempt=lease.number, reason=reason, log=attempt.log)
    return _settle(connection, lease, status=manifest.status, fleet=fleet, dead_letter=letter)


def _commit(
    store: ArtifactStore, attempt: FailedAttempt, *, run_id: str, generation: int, error: JobError
) -> Manifest:
    return create_manifest(
        store,
        run_id=run_id,
        generation=generation,
        number=attempt.lease.number,
        error=error,
        files=attempt.files,
    )


def _settle(
    connection: redis.Redis,
    lease: Lease,
    *,
    status: JobStatus,
    fleet: str,
    dead_letter: DeadLetter | None = None,
) -> Ended:
    settled = settle(connection, lease, status=status, fleet=fleet, dead_letter=dead_letter)
    log.info("entry %s: ended as %s", lease.entry, status)
    return Ended.SETTLED if settled else Ended.LOST
