"""Cancel runs: the queue forgets what waits, what runs is told to stop, storage says so for good.

The manifest `cancelled` of a run that waited is written here, by put-if-absent, in turn with the nodes where
the store does not decide by itself: where a node was quicker, its outcome stands.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import redis

from broker.cancel import CancelOutcome, cancel_runs
from broker.connection import queue_errors
from broker.keys import entry_id
from broker.turns import turns
from client.handle import RunHandle, SweepHandle
from client.standing import settled
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError, JobStatus
from queue_schemas.results import Manifest
from storage.base import ArtifactStore
from storage.layout import manifest_key
from storage.turns import TurnTakingStore

_WITHOUT_MANIFEST: Final = (CancelOutcome.REMOVED, CancelOutcome.UNKNOWN, CancelOutcome.ENDED)
"""The queue will not run these; one that ended and has no manifest was cancelled by someone who broke off."""


def cancel_handle(
    connection: redis.Redis,
    store: ArtifactStore,
    *,
    handle: RunHandle | SweepHandle,
    force: bool,
    fleet: str,
    to_write: Callable[[], ArtifactStore],
) -> dict[str, CancelOutcome]:
    """Cancel every run of a handle that has not ended; return what became of each, by run id.

    A run that the queue does not hold and that has no manifest is given one, so that nobody resumes it;
    `to_write` opens the store for that.
    """
    ended = {run.run_id for run in handle.runs if settled(store, run) is not None}
    going = [run for run in handle.runs if run.run_id not in ended]
    entries = [entry_id(run.run_id, run.generation) for run in going]
    asked = cancel_runs(connection, entries, sweep_id=handle.sweep_id, force=force, fleet=fleet)
    found = dict.fromkeys(ended, CancelOutcome.ENDED)
    found |= {run.run_id: outcome for run, outcome in zip(going, asked, strict=True)}
    unwritten = [run for run in going if found[run.run_id] in _WITHOUT_MANIFEST]
    if not unwritten:
        return {run.run_id: found[run.run_id] for run in handle.runs}
    writable = to_write()
    if not writable.conditional_writes():
        writable = TurnTakingStore(writable, turns(connection, fleet=fleet))
    with queue_errors(connection):
        for run in unwritten:
            data = _cancelled(run).model_dump_json().encode()
            won = writable.put_if_absent(manifest_key(run.run_id, run.generation), data)
            found[run.run_id] = CancelOutcome.REMOVED if won else CancelOutcome.ENDED
    return {run.run_id: found[run.run_id] for run in handle.runs}


def _cancelled(run: RunHandle) -> Manifest:
    job_id = run.job.job_id if run.job is not None else run.run_id.partition("-")[0]
    error = JobError(code=ErrorCode.CANCELLED, message="cancelled before it ran", retryable=False)
    return Manifest(
        run_id=run.run_id,
        job_id=job_id,
        generation=run.generation,
        attempt=0,
        status=JobStatus.CANCELLED,
        error=error,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
