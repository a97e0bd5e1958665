"""The puller: a forking rq worker that runs one task and never touches CUDA.

It claims an entry, forks a job process for it, renews its lease and watches; the job process does everything
else. Both die with their parent. Whatever changes an entry does so by a script that knows the lease, so rq's
own writes at the end of a job are replaced. Methods that override rq 3.0.0 keep its signatures; a contract
test compares them. Needs redis-server 6.2.
"""

import logging
import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NoReturn

import redis
from redis.client import Pipeline
from rq.executions import Execution
from rq.job import Job
from rq.job import JobStatus as RqStatus
from rq.queue import Queue
from rq.utils import now
from rq.worker import Worker, WorkerStatus

from broker.claim import Claimant, park
from broker.connection import hurry
from broker.keys import parse_entry_id
from broker.lease import Lease, renew, requeue, settle
from broker.patience import AWAY, patiently
from broker.serializer import StrictJson
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError, JobStatus
from storage.errors import StorageError
from worker.attempt import put_log
from worker.attempt_log import AttemptLog
from worker.claiming import Claimer
from worker.ending import CANCELLED, Ended, FailedAttempt, end_failed_attempt
from worker.entries import FleetQueue, GenerateEntry
from worker.errors import (
    AttemptFailedError,
    JobFailedError,
    LeaseLostError,
    RunCancelledError,
)
from worker.lifeline import die_with_parent
from worker.slot import RENEW_SECONDS, SlotDoor, give_back
from worker.tasks import TaskContext, open_task_store

log = logging.getLogger(__name__)

WORKER_TTL_SECONDS: Final = 30
"""Bounds the blocking claim (less 15 s) and with it the time a dead connection goes unnoticed."""
_TIMEOUT_MARGIN_SECONDS: Final = 60.0
"""Past the job's own time-out the job process is taken to be stuck and is killed."""


class Puller(Worker):
    """rq's forking worker, narrowed to this project's one task."""

    queue_class = FleetQueue
    job_class = GenerateEntry
    max_connection_wait_time = 5.0
    context: TaskContext
    claimer: Claimer
    _ended_with: BaseException | None = None
    """In the job process: what the job raised; rq tells its handlers only the text."""
    _lost_execution: str | None = None

    def run_maintenance_tasks(self) -> None:
        """Do nothing but say so: rq's own clean-up lets one malformed entry end every worker."""
        self.last_cleaned_at = now()  # type: ignore[assignment]  # rq infers None from its default

    def check_for_suspension(self, burst: bool) -> None:
        """Never suspended: rq's flag would stop every fleet on this Redis, and asking needs a Redis."""

    def set_state(self, state: str, pipeline: Pipeline | None = None) -> None:
        """Note the state, if it is another; only people read it, so a Redis that is away costs nothing."""
        if state == self.get_state():
            return
        try:
            super().set_state(state, pipeline=pipeline)
        except AWAY as error:
            log.debug("worker state not written: %s", type(error).__name__)

    def set_shutdown_requested_date(self) -> None:
        """Note that a signal came; an error here, in its handler, would end the job that should finish."""
        try:
            super().set_shutdown_requested_date()  # type: ignore[no-untyped-call]  # rq's has no annotations
        except AWAY as error:
            log.debug("shutdown request not written: %s", type(error).__name__)

    def heartbeat(self, timeout: int | None = None, pipeline: Pipeline | None = None) -> None:
        """Renew the worker's own key; as with the state, only people read it."""
        try:
            super().heartbeat(timeout, pipeline=pipeline)
        except AWAY as error:
            log.debug("worker heartbeat not written: %s", type(error).__name__)

    def prepare_execution(self, job: Job) -> Execution:
        """Give rq the execution that the claim has made already; only the worker's state is written."""
        self._stopped_job_id = None  # a stop that came too late must not mark the next attempt
        self._ended_with = self._lost_execution = None
        self.claimer.unstarted = None
        assert isinstance(job, GenerateEntry), "make_puller says so"
        job.attempt_log = AttemptLog()  # before the fork: both processes write to it
        execution = Execution(_lease(job).execution, job.id, self.connection, worker_name=self.name)
        execution._job = job
        self.executions[execution.id] = execution
        self.set_state(WorkerStatus.BUSY)
        return execution

    def prepare_job_execution(self, job: Job, remove_from_intermediate_queue: bool = False) -> None:
        """In the job process: the claim has told Redis everything; only rq's own object is brought up."""
        job.worker_name = self.name
        job._status = RqStatus.STARTED
        self.procline(f"Generating {job.id}")  # type: ignore[no-untyped-call]

    def setup_work_horse_signals(self) -> None:
        """In the job process: as rq does, and die with the puller, which alone renews the lease."""
        super().setup_work_horse_signals()  # type: ignore[no-untyped-call]  # rq's has no annotations
        assert self.pid is not None
        die_with_parent(self.pid)

    def kill_horse(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Kill the job process, if there is one.

        rq's own kills the worker's process group when there is none (`getpgid(0)`); and a job process that
        has not made its own group yet still shares the worker's.
        """
        pid = self.horse_pid
        if not pid:
            return
        try:
            group = os.getpgid(pid)
            if group == pid:
                os.killpg(group, sig)
            else:
                os.kill(pid, sig)
        except ProcessLookupError:
            self.log.debug("job process %s is gone already", pid)

    def wait_for_horse(self) -> tuple[int | None, int | None, Any]:
        """Collect the job process; nothing when there is none, or it was collected before."""
        if not self.horse_pid:
            return None, None, None
        try:
            return os.wait4(self.horse_pid, 0)
        except ChildProcessError:
            return None, None, None

    def monitor_work_horse(self, job: Job, queue: Queue, execution: Execution) -> None:
        """Wait for the job process, renewing the lease at every beat; see to the entry if it died.

        rq waits with an alarm, which is lost when the process is frozen at the wrong moment.
        """
        times, started = self.context.times, time.monotonic()
        limit = (job.timeout or 0) + _TIMEOUT_MARGIN_SECONDS if (job.timeout or -1) > 0 else float("inf")
        if self._stopped_job_id == job.id:  # the stop came before there was a process to kill
            self.kill_horse()
        slot = job.slot if isinstance(job, GenerateEntry) else None  # None as well once the job has used it
        while not _ended(
            self.horse_pid, seconds=min(times.beat_seconds, RENEW_SECONDS) if slot else times.beat_seconds
        ):
            if not self.claimer.renew(slot):
                slot = None
            if time.monotonic() - started > limit:
                log.error("entry %s: its process is past the time-out and is killed", job.id)
                self.kill_horse()
            self.maintain_heartbeats(job, execution)
        _, status, _ = self.wait_for_horse()
        self._horse_pid = 0
        self.executions.pop(execution.id, None)
        if status and isinstance(job, GenerateEntry):
            self.claimer.release(job.slot)  # of a job process that may have died before it could
        if status and self._lost_execution != execution.id:
            self._end_for_dead_process(job, status)
        if isinstance(job, GenerateEntry) and job.attempt_log is not None:
            job.attempt_log.close()

    def maintain_heartbeats(self, job: Job, execution: Execution) -> None:
        """Renew the lease; a lease that was taken away ends the job process. No Redis: skip this beat."""
        lease, times = _lease(job), self.context.times
        try:
            renewed = renew(self.connection, lease, seconds=times.lease_seconds)
        except AWAY as error:
            log.warning("entry %s: lease not renewed: Redis is away (%s)", job.id, type(error).__name__)
            return
        if not renewed:
            log.error("entry %s: its lease was taken away; its process is killed", job.id)
            self._lost_execution = execution.id
            self.kill_horse()
        self.heartbeat()

    def handle_execution_ended(self, job: Job, queue: Queue, heartbeat_ttl: int) -> None:
        """Note the time; rq would write to an entry that may be somebody else's by now."""
        job.ended_at = now()

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """Log what ended the job; rq's own puts the arguments, prompt included, into the log record."""
        self._ended_with = exc_info[1]
        if isinstance(exc_info[1], RunCancelledError):
            log.info("entry %s: cancelled", job.id)
            return
        log.error("entry %s failed: %s: %.500s", job.id, getattr(exc_info[0], "__name__", "?"), exc_info[1])

    def handle_job_success(
        self, job: Job, queue: Queue, started_job_registry: Any, execution: Execution
    ) -> None:
        """Tell the queue, if the lease is still ours; otherwise write nothing."""
        lease, fleet = _lease(job), self.context.fleet
        self._patiently(job, lambda: settle(self.connection, lease, status=JobStatus.SUCCEEDED, fleet=fleet))

    def handle_job_failure(
        self,
        job: Job,
        queue: Queue,
        started_job_registry: Any = None,
        exc_string: str = "",
        execution: Execution | None = None,
    ) -> None:
        """In the job process: end the entry or have it tried again, as the exception says."""
        error, self._ended_with = self._ended_with, None
        self._patiently(job, lambda: self._end(job, error))

    def handle_job_retry(
        self, job: Job, queue: Queue, retry: Any, started_job_registry: Any, execution: Execution
    ) -> None:
        """Never called: the task returns no Retry, and rq's own writes without looking at the lease."""
        raise NotImplementedError

    def request_force_stop(self, signum: int, frame: FrameType | None) -> NoReturn:
        """Give the running job back, no attempt used, and end: the second signal does not wait."""
        self.kill_horse()
        self.wait_for_horse()
        hurry(self.connection)
        for execution in list(self.executions.values()):
            self._give_back(_lease(execution.job))
        raise SystemExit

    def teardown(self) -> None:
        """End; an entry that a signal caught between its claim and its start is given back.

        A Redis that does not answer keeps nobody from ending: leases and the worker's key run out.
        """
        if self.is_horse:
            return
        hurry(self.connection)
        lease = self.claimer.unstarted
        if lease is not None:
            self._give_back(lease)
        try:
            super().teardown()  # type: ignore[no-untyped-call]  # rq's has no annotations
        except AWAY as error:
            log.debug("worker key left behind: %s", error)

    def _give_back(self, lease: Lease) -> None:
        try:
            requeue(self.connection, lease, delay_seconds=0.0, counts=False, fleet=self.context.fleet)
        except AWAY as error:
            log.warning("entry %s: not given back (%s); its lease runs out", lease.entry, error)

    def _end(self, job: Job, error: BaseException | None) -> None:
        lease, fleet = _lease(job), self.context.fleet
        match error:
            case LeaseLostError():
                return
            case AttemptFailedError():
                said = _log_of(job)
                failed = FailedAttempt(
                    lease=lease,
                    error=error.error,
                    counts=error.counts,
                    files=error.files,
                    log=said.tail() if said else "",
                )
                self._end_failed(failed)
            case RunCancelledError():
                settle(self.connection, lease, status=JobStatus.CANCELLED, fleet=fleet)
            case JobFailedError():
                settle(self.connection, lease, status=JobStatus.FAILED, fleet=fleet)
            case _ if isinstance(job, GenerateEntry) and job.began:  # the queue's own fault: the run is fine
                log.error("entry %s: left to its lease after %s", job.id, type(error).__name__)
            case _:  # before the task began: no entry of ours
                park(self.connection, lease, reason=f"{type(error).__name__}: {error}", fleet=fleet)
                give_back(self.context.engine, job.slot if isinstance(job, GenerateEntry) else None)

    def _end_for_dead_process(self, job: Job, status: int) -> None:
        lease = _lease(job)
        if self._stopped_job_id == job.id:
            error = CANCELLED
        else:
            how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {status >> 8}"
            error = JobError(
                code=ErrorCode.INTERNAL, message=f"the job's process ended with {how}", retryable=True
            )
            log.error("entry %s: %s", job.id, error.message)
        self._patiently(job, lambda: self._end_failed(self._without_process(job, lease, error)))

    def _without_process(self, job: Job, lease: Lease, error: JobError) -> FailedAttempt:
        """Return the attempt of a job process that is gone, with the log that it left here."""
        said = _log_of(job)
        if said is None:
            return FailedAttempt(lease=lease, error=error, files={})
        store = open_task_store(self.context, self.connection)
        file = put_log(said, store, run=parse_entry_id(lease.entry), number=lease.number)
        return FailedAttempt(lease=lease, error=error, files={"log": file}, log=said.tail())

    def _end_failed(self, attempt: FailedAttempt) -> Ended:
        return end_failed_attempt(
            self.connection,
            attempt,
            store=open_task_store(self.context, self.connection),
            fleet=self.context.fleet,
            times=self.context.times,
        )

    def _patiently(self, job: Job, act: Callable[[], object]) -> None:
        """Do what ends an entry; where queue or store stay away, the janitor does it later."""
        try:
            patiently(act, seconds=self.context.times.patience_seconds, what=f"entry {job.id}")
        except (StorageError, *AWAY) as fault:
            log.error("entry %s: left to its lease: %s: %s", job.id, type(fault).__name__, fault)


def make_puller(
    connection: redis.Redis,
    *,
    context: TaskContext,
    name: str,
    door: SlotDoor | None = None,
    may_claim: Callable[[], bool] = lambda: True,
) -> Puller:
    """Return a puller of the fleet's queues; its job processes get `context` by being forked from it.

    With a `door` it claims only what the engine has a slot for, and nothing while it may not.
    """
    name = f"{name}-{os.getpid()}-{time.time_ns():x}"
    who = Claimant(
        fleet=context.fleet,
        offers=context.offers,
        worker=name,
        lease_seconds=context.times.lease_seconds,
    )
    claimer = Claimer(connection, who, door=door, may_claim=may_claim)
    job_class = type("GenerateEntry", (GenerateEntry,), {"context": context, "claimer": claimer})
    # rq wants a queue to name; which ones are looked at is found out at every claim.
    queue = FleetQueue(context.fleet, connection=connection, job_class=job_class, serializer=StrictJson)
    puller = Puller(
        [queue],
        name=name,
        connection=connection,
        job_class=job_class,
        serializer=StrictJson,
        worker_ttl=WORKER_TTL_SECONDS,
        log_job_description=False,
    )
    puller.context, puller.claimer = context, claimer
    return puller


def _log_of(job: Job) -> AttemptLog | None:
    return job.attempt_log if isinstance(job, GenerateEntry) else None


def _lease(job: Job) -> Lease:
    assert isinstance(job, GenerateEntry), "make_puller says so"
    assert job.lease is not None, "the claim sets it"
    return job.lease


def _ended(pid: int, *, seconds: float) -> bool:
    """Wait up to `seconds` for a child to end; not by an alarm, which a frozen process can miss."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
