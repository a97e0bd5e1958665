"""The only task that a puller runs: `generate`, in a forked process of its own.

Every exception becomes a `JobError` here, and every run that has ended a manifest. An attempt that may be
repeated ends with AttemptFailedError instead: what is left of the entry's attempts is the queue's business.
Holds no torch and reads no environment: everything comes in `TaskContext`.
"""

import logging
from dataclasses import dataclass, field
from typing import Any, Final

import redis
from pydantic import ValidationError
from rq.timeouts import JobTimeoutException

from broker import keys
from broker.lease import Lease, renew
from broker.patience import AWAY, patiently
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError, JobStatus
from queue_schemas.results import Manifest
from storage.base import ArtifactStore
from storage.errors import StorageError
from storage.links import DEFAULT_RULES, LinkRules
from worker.attempt import Attempt, commit, job_id_of, make_film, prepare, read_manifest, write_record
from worker.attempt_log import AttemptLog
from worker.cancellation import CancelWatch
from worker.delivery import deliver, note
from worker.engine_client import EngineAddress, EngineClient
from worker.engine_log import engine_said
from worker.errors import (
    AttemptFailedError,
    EngineStalledError,
    JobFailedError,
    LeaseLostError,
    RunCancelledError,
    job_error,
)
from worker.fetching import fetch_references
from worker.leasing import LeaseTimes
from worker.relay import ProgressRelay
from worker.slot import Slot
from worker.spool import Spool
from worker.storing import until_stored
from worker.turns import open_fleet_store

log = logging.getLogger(__name__)

ENGINE_SECONDS: Final = 30.0
"""How long a claimed job waits for an engine that went away; then another node may have it."""
_OTHERS: Final = frozenset(
    {
        ErrorCode.BUSY,
        ErrorCode.ENGINE_LOST,
        ErrorCode.STALLED,
        ErrorCode.STORAGE_UNAVAILABLE,
        ErrorCode.QUEUE_UNAVAILABLE,
    }
)
"""Before the GPU began with a job these are hardly its fault, and use none of its attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """What a puller gives every job: fixed before the first fork."""

    engine: EngineAddress
    storage_url: str
    store_id: str
    """What `store.json` must say there: anything else is a store that is away."""
    fleet: str
    offers: tuple[str, ...] = ()
    """What needs this node satisfies: `checkpoint:NAME`, `attention:NAME` for each backend, `node:NAME`."""
    takes_turns: bool = False
    """Whether manifests are created under a lock, because the store does not decide by itself."""
    engine_seconds: float = ENGINE_SECONDS
    links: LinkRules = DEFAULT_RULES
    times: LeaseTimes = field(default_factory=LeaseTimes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskArguments:
    """What the entry says, its types checked; the job is not looked at yet."""

    run_id: str
    generation: int
    job: dict[str, Any]


def generate(
    run: TaskArguments,
    *,
    context: TaskContext,
    connection: redis.Redis,
    lease: Lease,
    slot: Slot | None,
    attempt_log: AttemptLog | None,
) -> dict[str, Any]:
    """Make one run and commit its manifest; a run that has one already is only reported.

    Raises JobFailedError or RunCancelledError when the run has ended so, after its manifest was written;
    AttemptFailedError when it may be tried again; LeaseLostError when it is somebody else's.
    """
    attempt = Attempt(
        run_id=run.run_id,
        generation=run.generation,
        number=lease.number,
        fields=run.job,
        queue_wait_seconds=lease.wait_seconds,
        slot=slot,
        log=attempt_log,
    )
    log.info("job %s: attempt %d", lease.entry, lease.number)
    try:
        store = open_task_store(context, connection)
        manifest = _look(attempt, context=context, store=store)
        if manifest is None:
            error = _try(attempt, context=context, connection=connection, lease=lease, store=store)
            manifest = _commit(
                attempt, error, context=context, connection=connection, lease=lease, store=store
            )
        _tidy(attempt, store=store)
    except (LeaseLostError, AttemptFailedError):
        raise
    except Exception as caught:  # the store, a damaged manifest: nothing that this job did
        log.warning("job %s: %s: %s", lease.entry, type(caught).__name__, caught)
        error = job_error(_named(caught))
        raise AttemptFailedError(error, counts=error.code not in _OTHERS, files=attempt.files) from None
    finally:
        attempt.release_slot(context.engine)  # of a run that had ended already, or was refused
    return _outcome(manifest)


def open_task_store(context: TaskContext, connection: redis.Redis) -> ArtifactStore:
    """Return the store that the context names."""
    return open_fleet_store(
        context.storage_url,
        connection,
        fleet=context.fleet,
        store_id=context.store_id,
        takes_turns=context.takes_turns,
    )


def check_lease(connection: redis.Redis, lease: Lease, *, times: LeaseTimes) -> None:
    """Renew the lease right before a manifest. Raises LeaseLostError when it was taken away.

    A Redis that is away is waited for; after that the store's conditional write alone decides, since while
    Redis is away nobody else can have been given the entry.
    """
    try:
        renewed = patiently(
            lambda: renew(connection, lease, seconds=times.lease_seconds),
            seconds=times.patience_seconds,
            what=f"job {lease.entry}",
        )
    except AWAY:
        log.warning("job %s: Redis stays away; committed by the store's word alone", lease.entry)
        return
    if not renewed:
        raise LeaseLostError(f"the lease of {lease.entry} was taken away")


def _look(attempt: Attempt, *, context: TaskContext, store: ArtifactStore) -> Manifest | None:
    """Return how the run has ended, if it has; a store that is away is waited for, without the slot."""
    return until_stored(
        lambda: read_manifest(store, attempt.run_id, attempt.generation),
        seconds=context.times.storage_seconds,
        what=f"job {attempt.run_id}",
        on_wait=lambda: attempt.release_slot(context.engine),
    )


def _try(
    attempt: Attempt, *, context: TaskContext, connection: redis.Redis, lease: Lease, store: ArtifactStore
) -> JobError | None:
    """Make the film and its record; return what ends the run. Raises AttemptFailedError."""
    entry = keys.entry_id(attempt.run_id, attempt.generation)
    relay = ProgressRelay(connection, entry, fleet=context.fleet)
    poll = context.times.cancel_poll_seconds
    try:
        with (
            CancelWatch(connection, entry, fleet=context.fleet, every_seconds=poll) as watch,
            watch.interrupting(),
        ):
            _run(attempt, context=context, relay=relay, store=store)
    except Exception as caught:  # the one place where a job's exceptions become its error
        error = job_error(_named(caught))
        _ask_engine_log(attempt)
        log.warning("job %s: %s: %s", entry, error.code, error.message)
        _record_failure(attempt, store=store, error=error, entry=entry)
        if error.retryable:
            at_work = relay.reached_gpu and error.code is not ErrorCode.STORAGE_UNAVAILABLE
            counts = at_work or _is_own_fault(error, attempt)
            raise AttemptFailedError(error, counts=counts, files=attempt.files) from None
        return error
    return None


def _run(attempt: Attempt, *, context: TaskContext, relay: ProgressRelay, store: ArtifactStore) -> None:
    seconds, what = context.engine_seconds, f"job {attempt.run_id}"
    with EngineClient(context.engine) as engine:
        prepare(attempt, engine=engine, on_event=relay, engine_seconds=seconds)
        spool = Spool(attempt.output_root)
        film = spool.find(attempt.run_id, attempt.generation, job_id=job_id_of(attempt))
        if film is None:
            with fetch_references(
                attempt,
                store=store,
                links=context.links,
                engine=context.engine,
                seconds=context.times.storage_seconds,
            ):
                film = make_film(attempt, engine=engine, on_event=relay, engine_seconds=seconds)
        else:
            attempt.release_slot(context.engine)
            attempt.result = film.made_by.result
            note(attempt, f"made by attempt {film.made_by.attempt} of this run, which could not store it")
    patience = context.times.storage_seconds
    deliver(attempt, film, store=store, spool=spool, on_event=relay, seconds=patience)
    until_stored(lambda: write_record(attempt, store=store, error=None), seconds=patience, what=what)


def _commit(
    attempt: Attempt,
    error: JobError | None,
    *,
    context: TaskContext,
    connection: redis.Redis,
    lease: Lease,
    store: ArtifactStore,
) -> Manifest:
    """Create the manifest under a lease that is looked at before every try."""

    def act() -> Manifest:
        check_lease(connection, lease, times=context.times)
        return commit(attempt, store=store, error=error)

    return until_stored(act, seconds=context.times.storage_seconds, what=f"job {attempt.run_id}")


def _tidy(attempt: Attempt, *, store: ArtifactStore) -> None:
    """Remove this run's film from the spool, if it was there, and those of runs that ended elsewhere."""
    if attempt.ready is None:
        return
    try:
        Spool(attempt.output_root).tidy(lambda *run: read_manifest(store, *run) is not None)
    except (StorageError, ValidationError) as error:  # the next job does it
        log.warning("job %s: spool not tidied: %s", attempt.run_id, error)


def _ask_engine_log(attempt: Attempt) -> None:
    """Add what the engine said during this job to the attempt's log."""
    if attempt.log is not None and attempt.ready is not None:
        node, since = attempt.ready.environment.node, attempt.engine_log_size
        attempt.log.add(engine_said(attempt.output_root, node=node, since=since), prefix="engine| ")


def _outcome(manifest: Manifest) -> dict[str, Any]:
    if manifest.status is JobStatus.CANCELLED:
        raise RunCancelledError
    if manifest.status is not JobStatus.SUCCEEDED and manifest.error is not None:
        raise JobFailedError(manifest.error) from None
    return {"run_id": manifest.run_id, "status": manifest.status, "attempt": manifest.attempt}


def _is_own_fault(error: JobError, attempt: Attempt) -> bool:
    """Say whether an attempt counts that ended before the engine told of any progress.

    An engine that had nothing else to do when the job came, and then went away, was ended by this job.
    """
    if error.code not in _OTHERS:
        return True
    alone = attempt.ready is not None and not attempt.ready.busy
    return alone and error.code in (ErrorCode.ENGINE_LOST, ErrorCode.STALLED)


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
