"""Cancel runs: the queue forgets what waits, what runs is told to stop, storage says so for good.

The manifest `cancelled` of a run that waited is written here, by put-if-absent: where a node was quicker, its
outcome stands.
"""

from datetime import UTC, datetime

import redis

from broker.cancel import CancelOutcome, cancel_runs
from broker.keys import entry_id
from client.handle import RunHandle, SweepHandle
from client.outcomes import read_manifest
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError, JobStatus
from queue_schemas.results import Manifest
from storage.base import ArtifactStore
from storage.layout import manifest_key


def cancel_handle(
    connection: redis.Redis,
    store: ArtifactStore,
    handle: RunHandle | SweepHandle,
    *,
    force: bool,
    fleet: str,
) -> dict[str, CancelOutcome]:
    """Cancel every run of a handle that has not ended; return what became of each, by run id.

    A run that the queue does not know and that has no manifest is given one, so that nobody resumes it.
    """
    ended = {
        run.run_id for run in handle.runs if read_manifest(store, run.run_id, run.generation) is not None
    }
    going = [run for run in handle.runs if run.run_id not in ended]
    entries = [entry_id(run.run_id, run.generation) for run in going]
    asked = cancel_runs(connection, entries, sweep_id=handle.sweep_id, force=force, fleet=fleet)
    found = dict.fromkeys(ended, CancelOutcome.ENDED)
    for run, outcome in zip(going, asked, strict=True):
        found[run.run_id] = outcome
        if outcome in (CancelOutcome.REMOVED, CancelOutcome.UNKNOWN):
            data = _cancelled(run).model_dump_json().encode()
            won = store.put_if_absent(manifest_key(run.run_id, run.generation), data)
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
