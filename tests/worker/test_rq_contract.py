"""Every method of rq that is overridden: the signature of rq 3.0.0, and what the override is for."""

import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis
import rq
from rq.exceptions import DequeueTimeout
from rq.job import Job
from rq.queue import Queue
from rq.worker import Worker

from broker.serializer import StrictJson
from broker.submit import QueuedRun, submit_runs
from worker.engine_client import EngineAddress
from worker.entries import FleetQueue, GenerateEntry
from worker.errors import EntryRefusedError
from worker.puller import Puller, make_puller
from worker.tasks import TaskContext

CONTEXT = TaskContext(engine=EngineAddress("http://127.0.0.1:1"), storage_url="/nowhere", fleet="h3")


def test_this_is_the_rq_that_the_overrides_were_written_for() -> None:
    assert rq.__version__ == "3.0.0"


@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [
        (FleetQueue, Queue, "dequeue_any"),
        (GenerateEntry, Job, "refresh"),
        (GenerateEntry, Job, "restore"),
        (Puller, Worker, "run_maintenance_tasks"),
        (Puller, Worker, "setup_work_horse_signals"),
        (Puller, Worker, "kill_horse"),
        (Puller, Worker, "handle_exception"),
    ],
)
def test_an_override_takes_the_arguments_that_rq_passes(ours: type, theirs: type, name: str) -> None:
    mine, base = (inspect.signature(getattr(owner, name)) for owner in (ours, theirs))

    assert [(p.name, p.kind) for p in mine.parameters.values()] == [
        (p.name, p.kind) for p in base.parameters.values()
    ]
    defaults = {n: p.default for n, p in base.parameters.items()}
    assert {n: p.default for n, p in mine.parameters.items()} == defaults


@pytest.mark.parametrize("name", ["func", "success_callback", "failure_callback", "stopped_callback"])
def test_an_overridden_property_is_one_in_rq_too(name: str) -> None:
    assert isinstance(inspect.getattr_static(Job, name), property)
    assert isinstance(inspect.getattr_static(GenerateEntry, name), property)


@pytest.fixture
def puller(redis_connection: redis.Redis) -> Puller:
    return make_puller(redis_connection, context=CONTEXT, name="test")


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
