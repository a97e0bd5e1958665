"""Every method of rq that is overridden: the signature of rq 3.0.0, and what the override is for."""

import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
import rq
from rq.exceptions import DequeueTimeout
from rq.job import Job
from rq.queue import Queue
from rq.utils import now
from rq.worker import Worker

from broker import keys
from broker.claim import Claimant, Idle, claim
from broker.lease import Lease
from broker.recovery import Expired, lead, seize
from broker.serializer import StrictJson
from broker.states import read_states
from broker.submit import QueuedRun, submit_runs
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError, JobStatus
from storage.identity import store_identity
from storage.local import LocalStore
from worker.engine_client import EngineAddress
from worker.entries import FleetQueue, GenerateEntry
from worker.errors import (
    AttemptFailedError,
    EntryRefusedError,
    JobFailedError,
    LeaseLostError,
    RunCancelledError,
)
from worker.leasing import LeaseTimes
from worker.puller import Puller, make_puller
from worker.tasks import TaskContext

OVERRIDDEN = [
    name
    for name, value in vars(Puller).items()
    if inspect.isfunction(value) and hasattr(Worker, name) and not name.startswith("__")
]
CONTEXT = TaskContext(
    engine=EngineAddress("http://127.0.0.1:1"),
    storage_url="/proc/no-store-here",
    store_id="0" * 32,
    fleet="h3",
    times=LeaseTimes(beat_seconds=0.05, patience_seconds=0.5),
)
LOST = JobError(code=ErrorCode.ENGINE_LOST, message="gone", retryable=True)


def test_this_is_the_rq_that_the_overrides_were_written_for() -> None:
    assert rq.__version__ == "3.0.0"


@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [
        (FleetQueue, Queue, "dequeue_any"),
        (GenerateEntry, Job, "refresh"),
        (GenerateEntry, Job, "restore"),
        *((Puller, Worker, name) for name in OVERRIDDEN),
    ],
)
def test_an_override_takes_the_arguments_that_rq_passes(ours: type, theirs: type, name: str) -> None:
    mine, base = (inspect.signature(getattr(owner, name)) for owner in (ours, theirs))

    assert [(p.name, p.kind) for p in mine.parameters.values()] == [
        (p.name, p.kind) for p in base.parameters.values()
    ]
    defaults = {n: p.default for n, p in base.parameters.items()}
    assert {n: p.default for n, p in mine.parameters.items()} == defaults


def test_every_override_has_a_test_of_what_it_does() -> None:
    tested = Path(__file__).read_text()

    assert len(OVERRIDDEN) == 19
    assert [name for name in OVERRIDDEN if f"puller.{name}(" not in tested] == []


@pytest.mark.parametrize("name", ["func", "success_callback", "failure_callback", "stopped_callback"])
def test_an_overridden_property_is_one_in_rq_too(name: str) -> None:
    assert isinstance(inspect.getattr_static(Job, name), property)
    assert isinstance(inspect.getattr_static(GenerateEntry, name), property)


@pytest.fixture
def puller(redis_connection: redis.Redis, tmp_path: Path) -> Puller:
    place = tmp_path / "store"
    context = replace(CONTEXT, storage_url=str(place), store_id=store_identity(LocalStore(place)))
    return make_puller(redis_connection, context=context, name="test")


@pytest.fixture
def cut_off(redis_connection: redis.Redis, free_port: int) -> Puller:
    """A puller whose Redis does not answer any more."""
    puller = make_puller(redis_connection, context=CONTEXT, name="test")
    puller.connection = redis.Redis(port=free_port, retry=None)
    return puller


def fetch(puller: Puller, connection: redis.Redis) -> Job:
    submit_runs(connection, [QueuedRun(run_id="ab", generation=1, job={"prompt": "x"})])
    return puller.job_class.fetch("ab-1", connection=connection, serializer=StrictJson)


def claimed(puller: Puller, connection: redis.Redis) -> GenerateEntry:
    """A claimed entry, as `dequeue_any` returns it."""
    submit_runs(connection, [QueuedRun(run_id="ab", generation=1, job={"prompt": "x"})])
    arguments: dict[str, Any] = {"connection": connection, "job_class": puller.job_class}
    found = FleetQueue.dequeue_any(puller.queues, None, **arguments)
    assert found is not None
    assert isinstance(found[0], GenerateEntry)
    return found[0]


def test_func_is_our_task_and_nothing_else(puller: Puller, redis_connection: redis.Redis) -> None:
    job = claimed(puller, redis_connection)
    assert job.func.__qualname__.startswith("GenerateEntry.func")

    job.func_name = "os.system"
    with pytest.raises(EntryRefusedError, match=r"os\.system"):
        _ = job.func


def test_callbacks_hooks_and_repeats_of_an_entry_are_ignored(
    puller: Puller, redis_connection: redis.Redis
) -> None:
    fetch(puller, redis_connection)
    names = ("success_callback_name", "failure_callback_name", "stopped_callback_name")
    redis_connection.hset(
        "rq:job:ab-1",
        mapping={
            **dict.fromkeys(names, "os.abort"),
            "repeats_left": 3,
            "repeat_intervals": "[1]",
            "webhooks": '[{"url": "http://127.0.0.1:1/", "statuses": ["finished"]}]',
        },
    )

    job = puller.job_class.fetch("ab-1", connection=redis_connection, serializer=StrictJson)

    assert (job.success_callback, job.failure_callback, job.stopped_callback) == (None, None, None)
    assert (job.webhooks, job.repeats_left) == ([], None)


def test_dequeue_any_blocks_and_then_raises_what_rq_expects(
    puller: Puller, redis_connection: redis.Redis
) -> None:
    arguments: dict[str, Any] = {"connection": redis_connection, "job_class": puller.job_class}

    assert FleetQueue.dequeue_any(puller.queues, None, **arguments) is None
    with pytest.raises(DequeueTimeout):
        FleetQueue.dequeue_any(puller.queues, 1, **arguments)

    fetch(puller, redis_connection)
    found = FleetQueue.dequeue_any(puller.queues, 1, serializer=StrictJson, **arguments)
    assert found is not None
    assert found[0].id == "ab-1"


def test_maintenance_touches_nothing_and_is_not_due_again(
    puller: Puller, redis_connection: redis.Redis
) -> None:
    redis_connection.zadd("rq:wip:h3", {"malformed-1:x": 1})

    puller.run_maintenance_tasks()

    assert not puller.should_run_maintenance_tasks
    assert redis_connection.zcard("rq:wip:h3") == 1


def test_kill_horse_without_a_horse_spares_the_worker_itself(puller: Puller) -> None:
    assert puller.horse_pid == 0

    puller.kill_horse()  # rq's own would end this test run here


def test_kill_horse_kills_a_child_that_still_shares_our_group(puller: Puller) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    puller._horse_pid = child.pid

    puller.kill_horse()

    assert child.wait(20) == -signal.SIGKILL


def test_a_job_process_whose_puller_is_gone_ends_itself(
    puller: Puller, eventually: Callable[..., None]
) -> None:
    puller.pid = 1 if os.getppid() != 1 else 2  # as if the puller had died between fork and prctl
    pid = os.fork()
    if pid == 0:
        puller.setup_work_horse_signals()
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_the_log_of_a_failed_entry_does_not_hold_its_arguments(
    puller: Puller, redis_connection: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    submit_runs(redis_connection, [QueuedRun(run_id="ab", generation=1, job={"prompt": "a secret fox"})])
    job = puller.job_class.fetch("ab-1", connection=redis_connection, serializer=StrictJson)

    puller.handle_exception(job, ValueError, ValueError("broken"), None)

    assert "ab-1" in caplog.text
    assert "secret" not in str([vars(record) for record in caplog.records])


def take_over(connection: redis.Redis, job: GenerateEntry) -> None:
    """Let the job's lease run out and take it, as a janitor does."""
    assert job.lease is not None
    connection.zadd(keys.leases_key(job.lease.queue), {job.lease.member: 1})
    expired = Expired(job.lease.queue, job.lease.member)
    assert lead(connection, fleet="h3", token="leader", seconds=30)
    assert seize(connection, expired, fleet="h3", token="leader", execution="janitor", seconds=60) is not None


def everything(connection: redis.Redis) -> dict[bytes, object]:
    return {key: connection.dump(key) for key in connection.scan_iter() if not key.startswith(b"rq:worker")}


def status(connection: redis.Redis) -> JobStatus | None:
    return read_states(connection, ["ab-1"])[0].status


def queue_of(puller: Puller, job: GenerateEntry) -> FleetQueue:
    assert job.lease is not None
    return FleetQueue(job.lease.queue, connection=puller.connection, serializer=StrictJson)


def run_child(puller: Puller, program: str) -> None:
    """Start a child in the place of the job process."""
    arguments = [sys.executable, "-c", program]
    puller._horse_pid = os.posix_spawn(sys.executable, arguments, os.environ, setsid=True)


def test_state_and_heartbeat_survive_a_redis_that_is_away(cut_off: Puller) -> None:
    puller = cut_off

    puller.set_state("busy")
    puller.heartbeat()
    puller.check_for_suspension(burst=False)
    puller._shutdown_requested_date = now()
    puller.set_shutdown_requested_date()
    puller.teardown()

    assert puller.get_state() == "busy"


def test_suspending_rq_does_not_suspend_the_fleet(puller: Puller, redis_connection: redis.Redis) -> None:
    redis_connection.set("rq:suspended", 1)

    puller.check_for_suspension(burst=False)  # rq's own would wait here for ever


def test_preparing_uses_the_execution_of_the_claim_and_forgets_an_old_stop(
    puller: Puller, redis_connection: redis.Redis
) -> None:
    job = claimed(puller, redis_connection)
    puller._stopped_job_id = job.id
    before = everything(redis_connection)

    execution = puller.prepare_execution(job)
    puller.prepare_job_execution(job)

    assert job.lease is not None
    assert execution.composite_key == job.lease.member
    assert puller.executions == {execution.id: execution}
    assert puller._stopped_job_id is None
    assert puller.claimer.unstarted is None
    assert everything(redis_connection) == before


def test_waiting_for_a_job_process_that_is_gone_returns_nothing(puller: Puller) -> None:
    assert puller.wait_for_horse() == (None, None, None)

    run_child(puller, "")
    assert puller.wait_for_horse()[0] == puller.horse_pid
    assert puller.wait_for_horse() == (None, None, None)


def test_monitoring_renews_the_lease_until_the_job_process_ends(
    puller: Puller, redis_connection: redis.Redis
) -> None:
    job = claimed(puller, redis_connection)
    execution = puller.prepare_execution(job)
    assert job.lease is not None
    key = keys.leases_key(job.lease.queue)
    redis_connection.zadd(key, {job.lease.member: 1})
    run_child(puller, "import time; time.sleep(0.3)")

    puller.monitor_work_horse(job, queue_of(puller, job), execution)

    score = redis_connection.zscore(key, job.lease.member)
    assert score is not None
    assert score > redis_connection.time()[0] + 50
    assert (puller.horse_pid, puller.executions) == (0, {})
    assert status(redis_connection) is JobStatus.RUNNING  # the job process ended well and says the rest


def test_a_job_process_that_dies_has_its_entry_tried_again(
    puller: Puller, redis_connection: redis.Redis
) -> None:
    job = claimed(puller, redis_connection)
    execution = puller.prepare_execution(job)
    run_child(puller, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")

    puller.monitor_work_horse(job, queue_of(puller, job), execution)

    assert status(redis_connection) is JobStatus.QUEUED
    assert redis_connection.zcard(keys.due_key("h3")) == 1


def test_a_stop_before_there_is_a_process_is_not_lost(puller: Puller, redis_connection: redis.Redis) -> None:
    job = claimed(puller, redis_connection)
    execution = puller.prepare_execution(job)
    puller.request_stop_execution(execution.id)  # kills nothing: there is nothing yet
    run_child(puller, "import time; time.sleep(60)")

    puller.monitor_work_horse(job, queue_of(puller, job), execution)

    assert status(redis_connection) is JobStatus.CANCELLED


def test_a_beat_without_redis_is_skipped_and_one_without_a_lease_kills(
    puller: Puller, cut_off: Puller, redis_connection: redis.Redis
) -> None:
    job = claimed(puller, redis_connection)
    execution = puller.prepare_execution(job)
    run_child(cut_off, "import time; time.sleep(60)")
    cut_off.maintain_heartbeats(job, execution)
    puller._horse_pid = cut_off.horse_pid
    puller.maintain_heartbeats(job, execution)
    assert os.waitpid(puller.horse_pid, os.WNOHANG) == (0, 0)

    take_over(redis_connection, job)
    before = everything(redis_connection)
    puller.maintain_heartbeats(job, execution)

    assert os.waitstatus_to_exitcode(os.waitpid(puller.horse_pid, 0)[1]) == -signal.SIGKILL
    assert everything(redis_connection) == before


def test_the_end_of_an_execution_is_noted_without_writing(
    puller: Puller, redis_connection: redis.Redis
) -> None:
    job = claimed(puller, redis_connection)
    redis_connection.delete(keys.entry_key("ab-1"))

    puller.handle_execution_ended(job, queue_of(puller, job), 60)

    assert job.ended_at is not None
    assert not redis_connection.exists(keys.entry_key("ab-1"))  # rq's own would bring it back


def test_a_success_is_told_unless_the_lease_was_taken(puller: Puller, redis_connection: redis.Redis) -> None:
    job = claimed(puller, redis_connection)
    execution = puller.prepare_execution(job)
    queue = queue_of(puller, job)
    take_over(redis_connection, job)
    before = everything(redis_connection)

    puller.handle_job_success(job, queue, queue.started_job_registry, execution)
    assert everything(redis_connection) == before

    redis_connection.flushdb()
    job = claimed(puller, redis_connection)
    puller.handle_job_success(job, queue, queue.started_job_registry, puller.prepare_execution(job))
    assert status(redis_connection) is JobStatus.SUCCEEDED


def test_a_success_that_redis_does_not_hear_is_left_to_the_lease(cut_off: Puller) -> None:
    puller = cut_off
    job = GenerateEntry("ab-1", connection=puller.connection, serializer=StrictJson)
    job.lease = Lease(queue="q", entry="ab-1", execution="x", number=1, used=1)
    queue = queue_of(puller, job)

    puller.handle_job_success(job, queue, None, puller.prepare_execution(job))  # does not raise


@pytest.mark.parametrize(
    ("error", "after"),
    [
        (LeaseLostError("taken"), JobStatus.RUNNING),
        (AttemptFailedError(LOST, counts=True, files={}), JobStatus.QUEUED),
        (RunCancelledError(), JobStatus.CANCELLED),
        (JobFailedError(LOST), JobStatus.FAILED),
        (EntryRefusedError("other task"), JobStatus.FAILED),
    ],
)
def test_a_failure_ends_the_entry_as_its_exception_says(
    puller: Puller, redis_connection: redis.Redis, error: Exception, after: JobStatus
) -> None:
    job = claimed(puller, redis_connection)
    execution = puller.prepare_execution(job)
    queue = queue_of(puller, job)

    puller.handle_exception(job, type(error), error, None)
    puller.handle_job_failure(job, queue, queue.started_job_registry, "text", execution)

    assert status(redis_connection) is after
    parked = redis_connection.exists(keys.poison_key("h3"))
    assert bool(parked) == isinstance(error, EntryRefusedError)


def test_a_failure_after_the_lease_was_taken_writes_nothing(
    puller: Puller, redis_connection: redis.Redis
) -> None:
    job = claimed(puller, redis_connection)
    take_over(redis_connection, job)
    before = everything(redis_connection)

    for error in (AttemptFailedError(LOST, counts=True, files={}), JobFailedError(LOST), RunCancelledError()):
        puller.handle_exception(job, type(error), error, None)
        puller.handle_job_failure(job, queue_of(puller, job))

    assert everything(redis_connection) == before


def test_an_unexpected_failure_of_a_begun_job_is_left_to_its_lease(
    puller: Puller, redis_connection: redis.Redis
) -> None:
    job = claimed(puller, redis_connection)
    job.began = True

    puller.handle_exception(job, ValueError, ValueError("odd"), None)
    puller.handle_job_failure(job, queue_of(puller, job))

    assert status(redis_connection) is JobStatus.RUNNING
    assert not redis_connection.exists(keys.poison_key("h3"))


def test_the_retries_of_rq_are_never_used(puller: Puller, redis_connection: redis.Redis) -> None:
    job = claimed(puller, redis_connection)

    with pytest.raises(NotImplementedError):
        puller.handle_job_retry(job, queue_of(puller, job), None, None, puller.prepare_execution(job))


def test_a_second_signal_gives_the_job_back_without_using_an_attempt(
    puller: Puller, redis_connection: redis.Redis
) -> None:
    job = claimed(puller, redis_connection)
    puller.prepare_execution(job)
    run_child(puller, "import time; time.sleep(60)")

    with pytest.raises(SystemExit):
        puller.request_force_stop(signal.SIGTERM, None)

    again = claim(redis_connection, Claimant(fleet="h3", offers=(), worker="other", lease_seconds=60))
    assert isinstance(again, Lease)
    assert (again.number, again.used) == (2, 1)


def test_an_end_between_claim_and_start_gives_the_job_back(
    puller: Puller, redis_connection: redis.Redis
) -> None:
    claimed(puller, redis_connection)
    other = Claimant(fleet="h3", offers=(), worker="other", lease_seconds=60)
    assert isinstance(claim(redis_connection, other), Idle)
    puller.subscribe()

    puller.teardown()

    assert isinstance(claim(redis_connection, other), Lease)
