"""The only task that a puller runs: `generate`, in a forked process of its own.

Whatever happens to a run becomes a manifest here, and every exception a `JobError`: the queue's own result
only says finished or failed. Holds no torch and reads no environment: everything comes in `TaskContext`.
"""

import logging
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq.timeouts import JobTimeoutException

from broker import keys
from broker.submit import QUEUED_TIME_FIELD
from queue_schemas.events import JobError, JobStatus
from storage.base import ArtifactStore
from storage.uri import open_store
from worker.attempt import Attempt, commit, make_film, read_manifest, write_record
from worker.engine_client import EngineAddress, EngineClient
from worker.errors import EngineStalledError, JobFailedError, job_error
from worker.relay import ProgressRelay

log = logging.getLogger(__name__)

ATTEMPTS_TTL_SECONDS: Final = 30 * 86_400
ENGINE_SECONDS: Final = 1800.0
"""How long a claimed job waits for an engine that restarts, loads or is busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """What a puller gives every job: fixed before the first fork."""

    engine: EngineAddress
    storage_url: str
    fleet: str
    engine_seconds: float = ENGINE_SECONDS


def generate(
    *, run_id: str, generation: int, job: dict[str, Any], context: TaskContext, connection: redis.Redis
) -> dict[str, Any]:
    """Make one run and commit its manifest; a run that has one already is only reported.

    Raises JobFailedError when the run has ended badly, after its manifest was written.
    """
    entry = keys.entry_id(run_id, generation)
    store = open_store(context.storage_url)
    manifest = read_manifest(store, run_id, generation)
    if manifest is None:
        attempt = Attempt(
            run_id=run_id,
            generation=generation,
            number=_next_attempt(connection, entry, fleet=context.fleet),
            fields=job,
            queue_wait_seconds=_queue_wait(connection, entry),
        )
        error: JobError | None = None
        try:
            _run(attempt, context=context, connection=connection, entry=entry, store=store)
            write_record(attempt, store=store, error=None)
        except Exception as caught:  # the one place where a job's exceptions become its error
            error = job_error(_named(caught))
            log.warning("job %s: %s: %s", entry, error.code, error.message)
            _record_failure(attempt, store=store, error=error, entry=entry)
        manifest = commit(attempt, store=store, error=error)
    if manifest.status is not JobStatus.SUCCEEDED and manifest.error is not None:
        raise JobFailedError(manifest.error) from None
    return {"run_id": run_id, "status": manifest.status, "attempt": manifest.attempt}


def _run(
    attempt: Attempt, *, context: TaskContext, connection: redis.Redis, entry: str, store: ArtifactStore
) -> None:
    relay = ProgressRelay(connection, entry, fleet=context.fleet)
    with EngineClient(context.engine) as engine:
        make_film(attempt, engine=engine, store=store, on_event=relay, engine_seconds=context.engine_seconds)


def _record_failure(attempt: Attempt, *, store: ArtifactStore, error: JobError, entry: str) -> None:
    """Store the record of a failure if that is possible; its manifest tells it anyway."""
    try:
        write_record(attempt, store=store, error=error)
    except Exception as caught:
        log.warning("job %s: record not stored: %s", entry, type(caught).__name__)


def _named(error: Exception) -> Exception:
    """Give rq's time-out, which may interrupt anything, the code that clients know."""
    if isinstance(error, JobTimeoutException):
        return EngineStalledError("the job ran longer than the queue allows")
    return error


def _next_attempt(connection: redis.Redis, entry: str, *, fleet: str) -> int:
    key = keys.attempts_key(fleet, entry)
    with connection.pipeline(transaction=True) as pipeline:
        pipeline.incr(key)
        pipeline.expire(key, ATTEMPTS_TTL_SECONDS)
        return int(pipeline.execute()[0])


def _queue_wait(connection: redis.Redis, entry: str) -> float | None:
    """Return the seconds since the entry was queued, by the server's clock alone."""
    queued = connection.hget(keys.entry_key(entry), QUEUED_TIME_FIELD)
    if queued is None:
        return None
    seconds, microseconds = connection.time()
    return max(0.0, seconds + microseconds / 1e6 - float(queued))
