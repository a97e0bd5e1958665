"""Submission: one entry per run, readable by rq, bounded and free of prompts."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import rq.job

from broker import keys
from broker.errors import QueueEntryError
from broker.serializer import StrictJson
from broker.states import read_states
from broker.submit import QueuedRun, submit_runs
from queue_schemas.events import JobStatus
from queue_schemas.runs import entry_payload
from queue_schemas.tasks import GENERATE_TASK


def make_run(run_id: str = "ab12", *, generation: int = 1, prompt: str = "a red fox") -> QueuedRun:
    return QueuedRun(run_id=run_id, generation=generation, job={"workflow": "t2va", "prompt": prompt})


def test_rq_reads_a_submitted_run_as_its_own(redis_connection: redis.Redis) -> None:
    submit_runs(redis_connection, [make_run()])

    job = rq.job.Job.fetch("ab12-1", connection=redis_connection, serializer=StrictJson)
    assert job.func_name == GENERATE_TASK
    run = make_run()
    assert job.kwargs == entry_payload("ab12", 1, job=dict(run.job), key=run.key, submission=run.submission)
    assert job.get_status() == rq.job.JobStatus.QUEUED
    assert (job.timeout, job.result_ttl, job.failure_ttl) == (6 * 3600, 7 * 86_400, 30 * 86_400)
    assert redis_connection.lrange(keys.queue_key("h3"), 0, -1) == [b"ab12-1"]


def test_the_description_of_an_entry_does_not_hold_the_prompt(redis_connection: redis.Redis) -> None:
    submit_runs(redis_connection, [make_run(prompt="a secret fox")])

    assert b"secret" not in (redis_connection.hget(keys.entry_key("ab12-1"), "description") or b"")


def test_a_hundred_simultaneous_submits_of_one_run_queue_it_once(redis_connection: redis.Redis) -> None:
    with ThreadPoolExecutor(16) as threads:
        outcomes = list(threads.map(lambda _: submit_runs(redis_connection, [make_run()])[0], range(100)))

    assert sum(not outcome.joined for outcome in outcomes) == 1
    assert redis_connection.llen(keys.queue_key("h3")) == 1


def test_hundreds_of_runs_are_queued_in_order_and_the_second_time_all_joined(
    redis_connection: redis.Redis,
) -> None:
    runs = [make_run(f"run{number:04}") for number in range(450)]

    first = submit_runs(redis_connection, runs)
    second = submit_runs(redis_connection, runs)

    assert [outcome.joined for outcome in first] == [False] * 450
    assert [outcome.joined for outcome in second] == [True] * 450
    listed = redis_connection.lrange(keys.queue_key("h3"), 0, -1)
    assert listed == [run.entry_id.encode() for run in runs]


def test_the_same_run_twice_in_one_call_is_queued_once(redis_connection: redis.Redis) -> None:
    outcomes = submit_runs(redis_connection, [make_run(), make_run()])

    assert [outcome.joined for outcome in outcomes] == [False, True]
    assert redis_connection.llen(keys.queue_key("h3")) == 1


@pytest.mark.parametrize("status", ["queued", "started", "deferred", "scheduled", "rate_limited"])
def test_a_run_on_its_way_is_joined(redis_connection: redis.Redis, status: str) -> None:
    submit_runs(redis_connection, [make_run()])
    redis_connection.zadd(keys.leases_key(keys.queue_name("h3")), {"ab12-1:execution": 1})
    redis_connection.hset(keys.entry_key("ab12-1"), mapping={"status": status, "lease": "ab12-1:execution"})

    assert submit_runs(redis_connection, [make_run()])[0].joined
    assert redis_connection.llen(keys.queue_key("h3")) == 1


@pytest.mark.parametrize("status", ["finished", "failed", "stopped", "canceled"])
def test_an_entry_that_has_ended_is_queued_again_without_what_was_left_of_it(
    redis_connection: redis.Redis, status: str
) -> None:
    submit_runs(redis_connection, [make_run()])
    redis_connection.delete(keys.queue_key("h3"))
    redis_connection.hset(keys.entry_key("ab12-1"), mapping={"status": status, "worker_name": "old"})
    redis_connection.sadd(keys.wants_key("h3", "ab12-1"), "old-sweep")

    outcome = submit_runs(redis_connection, [make_run()])[0]

    assert not outcome.joined
    assert redis_connection.lrange(keys.queue_key("h3"), 0, -1) == [b"ab12-1"]
    assert not redis_connection.exists(keys.wants_key("h3", "ab12-1"))
    assert redis_connection.hget(keys.entry_key("ab12-1"), "worker_name") is None


def test_a_run_that_nobody_holds_a_lease_of_is_queued_again(redis_connection: redis.Redis) -> None:
    submit_runs(redis_connection, [make_run()])
    redis_connection.delete(keys.queue_key("h3"))
    redis_connection.hset(keys.entry_key("ab12-1"), mapping={"status": "started", "lease": "ab12-1:gone"})

    assert not submit_runs(redis_connection, [make_run()])[0].joined
    assert redis_connection.lrange(keys.queue_key("h3"), 0, -1) == [b"ab12-1"]


def test_a_foreign_key_in_the_place_of_an_entry_is_replaced(redis_connection: redis.Redis) -> None:
    redis_connection.set(keys.entry_key("ab12-1"), "not a hash")

    assert not submit_runs(redis_connection, [make_run()])[0].joined
    assert read_states(redis_connection, ["ab12-1"])[0].status is JobStatus.QUEUED


def test_a_run_queued_by_another_fleet_is_refused_not_joined(redis_connection: redis.Redis) -> None:
    submit_runs(redis_connection, [make_run()], fleet="night")

    with pytest.raises(QueueEntryError, match="another fleet"):
        submit_runs(redis_connection, [make_run()], fleet="day")

    assert not redis_connection.exists(keys.queue_key("day"))


def test_an_oversized_job_is_refused_before_anything_is_queued(redis_connection: redis.Redis) -> None:
    with pytest.raises(QueueEntryError, match="65,536"):
        submit_runs(redis_connection, [make_run("good"), make_run(prompt="x" * 70_000)])

    assert redis_connection.dbsize() == 0


@pytest.mark.parametrize("value", [float("nan"), b"bytes", object()])
def test_a_job_that_is_not_plain_json_is_refused(redis_connection: redis.Redis, value: object) -> None:
    with pytest.raises(QueueEntryError, match="not plain JSON"):
        submit_runs(redis_connection, [QueuedRun(run_id="ab12", generation=1, job={"shift": value})])


@pytest.mark.parametrize(("run_id", "generation"), [("a:b", 1), ("", 1), ("a/b", 1), ("ab", 0)])
def test_an_id_that_no_entry_can_have_is_refused(
    redis_connection: redis.Redis, run_id: str, generation: int
) -> None:
    with pytest.raises(QueueEntryError):
        submit_runs(redis_connection, [make_run(run_id, generation=generation)])


def test_the_time_of_queueing_is_the_servers_own(redis_connection: redis.Redis) -> None:
    before = redis_connection.time()
    submit_runs(redis_connection, [make_run()])
    after = redis_connection.time()

    queued = float(redis_connection.hget(keys.entry_key("ab12-1"), "queued_time") or b"0")
    assert before[0] + before[1] / 1e6 <= queued <= after[0] + after[1] / 1e6


def test_a_foreign_key_in_the_fleets_place_is_one_sentence(redis_connection: redis.Redis) -> None:
    redis_connection.set(keys.registered_key("h3"), "something else")

    with pytest.raises(QueueEntryError, match="holds something else; `h3 doctor`"):
        submit_runs(redis_connection, [make_run()])
