"""Where runs stand: the manifest in storage decides, the queue only fills the time before it.

Knows no connection: the caller brings what the queue said, and what the live nodes mean for it.
"""

from typing import Final

from broker.states import RunState
from client.errors import DamagedArtifactError
from client.handle import RunHandle, RunStatus
from client.outcomes import read_manifest
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError, JobStatus
from queue_schemas.results import Manifest
from storage.base import ArtifactStore

SILENT_SECONDS: Final = 60.0
"""A lease: progress older than this, and no live node that could be at it, means that its node is gone."""
NODE_GONE: Final = (
    "its node is gone: silent for over a minute, and no live node could be at it; it waits for one"
)


def settled(store: ArtifactStore, run: RunHandle) -> RunStatus | None:
    """Return how a run ended as storage tells it; None before its manifest. A damaged one is a failure."""
    try:
        manifest = read_manifest(store, run.run_id, run.generation)
    except DamagedArtifactError as error:
        told = JobError(code=error.code, message=str(error), retryable=False)
        return RunStatus(run_id=run.run_id, generation=run.generation, status=JobStatus.FAILED, error=told)
    return None if manifest is None else _ended(manifest)


def is_silent(state: RunState) -> bool:
    """Say whether a run that the queue calls running has shown no sign of life for a lease."""
    age = state.progress_age_seconds
    return state.status is JobStatus.RUNNING and (age is None or age > SILENT_SECONDS)


def status_of(
    store: ArtifactStore,
    run: RunHandle,
    *,
    state: RunState,
    node_gone: bool = False,
    elsewhere: str | None = None,
) -> RunStatus:
    """Return where a run stands, given what the queue said a moment before.

    `elsewhere` is what to say of a node that writes to another store than this one.
    """
    if state.status is not JobStatus.QUEUED:
        # The manifest is written before the queue hears of the end, so it is read after the queue.
        status = settled(store, run)
        if status is not None:
            return status
    if state.status is None:
        return _without_manifest(run, JobStatus.FAILED, said="does not know this run", elsewhere=elsewhere)
    if state.status.terminal:
        ended = JobStatus.CANCELLED if state.status is JobStatus.CANCELLED else JobStatus.FAILED
        said = f"calls this run {state.status}"
        return _without_manifest(run, ended, said=said, elsewhere=elsewhere)
    return RunStatus(
        run_id=run.run_id,
        generation=run.generation,
        status=state.status,
        progress=state.progress,
        note=NODE_GONE if node_gone else None,
    )


def _ended(manifest: Manifest) -> RunStatus:
    return RunStatus(
        run_id=manifest.run_id,
        generation=manifest.generation,
        status=manifest.status,
        error=manifest.error,
        manifest=manifest,
    )


def _without_manifest(run: RunHandle, status: JobStatus, *, said: str, elsewhere: str | None) -> RunStatus:
    remedy = elsewhere or "look at the node's log, then resubmit"
    message = f"the queue {said} and storage has no manifest of it; {remedy}"
    code = ErrorCode.ENGINE_LOST if elsewhere is None else ErrorCode.STORAGE_UNAVAILABLE
    error = JobError(code=code, message=message, retryable=True)
    return RunStatus(run_id=run.run_id, generation=run.generation, status=status, error=error, note=elsewhere)
