"""Where runs stand: the manifest in storage decides, the queue only fills the time before it.

Knows no connection: the caller brings what the queue said.
"""

from broker.states import RunState
from client.handle import RunHandle, RunStatus
from client.outcomes import read_manifest
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError, JobStatus
from queue_schemas.results import Manifest
from storage.base import ArtifactStore


def settled(store: ArtifactStore, run: RunHandle) -> RunStatus | None:
    """Return how a run ended as storage tells it; None before its manifest."""
    manifest = read_manifest(store, run.run_id, run.generation)
    return None if manifest is None else _ended(manifest)


def status_of(store: ArtifactStore, run: RunHandle, *, state: RunState) -> RunStatus:
    """Return where a run stands, given what the queue said a moment before."""
    if state.status is not JobStatus.QUEUED:
        # The manifest is written before the queue hears of the end, so it is read after the queue.
        status = settled(store, run)
        if status is not None:
            return status
    if state.status is None:
        return _without_manifest(run, JobStatus.FAILED, said="does not know this run")
    if state.status.terminal:
        ended = JobStatus.CANCELLED if state.status is JobStatus.CANCELLED else JobStatus.FAILED
        return _without_manifest(run, ended, said=f"calls this run {state.status}")
    return RunStatus(
        run_id=run.run_id, generation=run.generation, status=state.status, progress=state.progress
    )


def _ended(manifest: Manifest) -> RunStatus:
    return RunStatus(
        run_id=manifest.run_id,
        generation=manifest.generation,
        status=manifest.status,
        error=manifest.error,
        manifest=manifest,
    )


def _without_manifest(run: RunHandle, status: JobStatus, *, said: str) -> RunStatus:
    message = f"the queue {said} and storage has no manifest of it; look at the node's log, then resubmit"
    error = JobError(code=ErrorCode.ENGINE_LOST, message=message, retryable=True)
    return RunStatus(run_id=run.run_id, generation=run.generation, status=status, error=error)
