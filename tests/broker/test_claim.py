"""Claiming: urgent before old, old before new, only what the node can serve, and nothing that is no entry."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from rq.executions import Execution

from broker import keys
from broker.claim import Claimant, Idle, claim, park, peek, wait_for_work
from broker.lease import Lease
from broker.overview import fleet_counts, queue_overview
from broker.progress import write_progress
from broker.states import read_states
from broker.submit import QueuedRun, submit_runs
from queue_schemas.events import JobStatus, ProgressEvent, Stage
from queue_schemas.runs import Priority, Submission

NODE = Claimant(fleet="h3", offers=("checkpoint:a", "attention:x"), worker="test", lease_seconds=60)


def submit(
    connection: redis.Redis, run_id: str, *, needs: tuple[str, ...] = (), priority: str = "normal"
) -> None:
    run = QueuedRun(
        run_id=run_id,
        generation=1,
        job={"prompt": "a fox"},
        needs=needs,
        submission=Submission(priority=Priority(priority)),
    )
    submit_runs(connection, [run])


def claim_all(connection: redis.Redis, who: Claimant = NODE) -> list[str]:
    claimed = []
    while isinstance(lease := claim(connection, who), Lease):
        claimed.append(lease.entry)
    return claimed


def test_urgent_comes_first_and_then_the_oldest_whatever_its_queue(redis_connection: redis.Redis) -> None:
    submit(redis_connection, "low", priority="low")
    submit(redis_connection, "first", needs=("checkpoint:a",))
    submit(redis_connection, "second")
    submit(redis_connection, "third", needs=("checkpoint:a",))
    submit(redis_connection, "high", priority="high", needs=("attention:x", "checkpoint:a"))

    assert claim_all(redis_connection) == ["high-1", "first-1", "second-1", "third-1", "low-1"]


def test_a_node_leaves_what_needs_something_that_it_does_not_offer(redis_connection: redis.Redis) -> None:
    submit(redis_connection, "other", needs=("checkpoint:b",))
    submit(redis_connection, "both", needs=("checkpoint:a", "node:elsewhere"))

    assert peek(redis_connection, NODE) is not None
    assert claim_all(redis_connection) == []
    other = Claimant(fleet="h3", offers=("checkpoint:b",), worker="test", lease_seconds=60)
    assert claim_all(redis_connection, other) == ["other-1"]


def test_a_claim_changes_everything_at_once(redis_connection: redis.Redis) -> None:
    submit(redis_connection, "ab")
    assert peek(redis_connection, NODE) is None

    lease = claim(redis_connection, NODE)

    assert isinstance(lease, Lease)
    assert (lease.entry, lease.number, lease.used) == ("ab-1", 1, 1)
    assert lease.wait_seconds is not None
    assert read_states(redis_connection, ["ab-1"])[0].status is JobStatus.RUNNING
    assert redis_connection.llen(keys.queue_key("h3")) == 0
    score = redis_connection.zscore(keys.leases_key(lease.queue), lease.member)
    assert score is not None
    assert 55 < score - redis_connection.time()[0] <= 61
    execution = Execution.fetch(lease.execution, "ab-1", connection=redis_connection)
    assert execution.worker_name == "test"  # rq's stop command finds its way


def test_a_claim_forgets_how_far_an_earlier_attempt_came(redis_connection: redis.Redis) -> None:
    submit(redis_connection, "a")
    event = ProgressEvent(stage=Stage.DENOISE, step=5, steps=8)
    write_progress(redis_connection, "a-1", event=event, fleet="h3")

    claim(redis_connection, NODE)

    assert read_states(redis_connection, ["a-1"])[0].progress is None


def test_of_many_that_claim_at_once_each_entry_goes_to_one(redis_connection: redis.Redis) -> None:
    for number in range(40):
        submit(redis_connection, f"run{number}")

    with ThreadPoolExecutor(8) as threads:
        shares = list(threads.map(lambda _: claim_all(redis_connection), range(8)))

    claimed = [entry for share in shares for entry in share]
    assert sorted(claimed) == sorted(f"run{number}-1" for number in range(40))


@pytest.mark.parametrize("status", ["started", "finished", "canceled", "scheduled"])
def test_an_entry_that_is_listed_without_waiting_is_dropped(
    redis_connection: redis.Redis, status: str
) -> None:
    submit(redis_connection, "ab")
    redis_connection.hset(keys.entry_key("ab-1"), "status", status)

    assert isinstance(claim(redis_connection, NODE), Idle)
    assert redis_connection.hget(keys.entry_key("ab-1"), "status") == status.encode()
    assert fleet_counts(redis_connection).parked == 0


def test_what_is_no_entry_is_parked_and_the_next_one_claimed(redis_connection: redis.Redis) -> None:
    submit(redis_connection, "good")
    redis_connection.set(keys.entry_key("text-1"), "x")
    redis_connection.hset(keys.entry_key("odd-1"), mapping={"status": "nonsense"})
    redis_connection.hset(keys.entry_key("count-1"), mapping={"status": "queued", "attempts_used": "many"})
    entries = ("gone-1", "text-1", "odd-1", "count-1", "a:b", b"\xff\xfe", "x" * 300)
    redis_connection.lpush(keys.queue_key("h3"), *entries)

    lease = claim(redis_connection, NODE)

    assert isinstance(lease, Lease)
    assert lease.entry == "good-1"
    parked = redis_connection.hgetall(keys.poison_key("h3"))
    assert set(parked) == {b"text-1", b"odd-1", b"count-1", b"a:b", b"\xff\xfe", b"x" * 200}
    assert fleet_counts(redis_connection).parked == 6


def test_a_registration_that_cannot_be_read_is_left_out(redis_connection: redis.Redis) -> None:
    submit(redis_connection, "ab")
    for name, text in {"a": "{", "b": "[]", "c": '{"priority": "now", "needs": []}', "d": "{}"}.items():
        redis_connection.hset(keys.registered_key("h3"), name, text)

    assert claim_all(redis_connection) == ["ab-1"]
    assert [queue.name for queue in queue_overview(redis_connection)] == [keys.queue_name("h3")]


def test_a_queue_key_of_a_foreign_type_does_not_stop_the_others(redis_connection: redis.Redis) -> None:
    redis_connection.hset(
        keys.registered_key("h3"), "h3-high-broken", json.dumps({"priority": "high", "needs": []})
    )
    redis_connection.set(keys.list_key("h3-high-broken"), "no list")
    submit(redis_connection, "ab")

    assert claim_all(redis_connection) == ["ab-1"]


def test_one_who_waits_wakes_when_something_is_listed(redis_connection: redis.Redis) -> None:
    idle = peek(redis_connection, NODE)
    assert idle is not None
    submit(redis_connection, "before")

    wait_for_work(redis_connection, idle, fleet="h3", seconds=30)  # listed meanwhile: returns at once

    idle = claim(redis_connection, Claimant(fleet="h3", offers=(), worker="w", lease_seconds=60))
    assert isinstance(idle, Lease)
    idle = peek(redis_connection, NODE)
    assert idle is not None
    waiter = threading.Thread(
        target=wait_for_work, args=(redis_connection, idle), kwargs={"fleet": "h3", "seconds": 30}
    )
    waiter.start()
    submit(redis_connection, "after")
    waiter.join(10)
    assert not waiter.is_alive()


def test_a_parked_claim_holds_no_lease_and_says_why(redis_connection: redis.Redis) -> None:
    submit(redis_connection, "ab")
    lease = claim(redis_connection, NODE)
    assert isinstance(lease, Lease)

    park(redis_connection, lease, reason="broken", fleet="h3")

    assert redis_connection.hgetall(keys.poison_key("h3")) == {b"ab-1": b"broken"}
    assert redis_connection.zcard(keys.leases_key(lease.queue)) == 0
    assert read_states(redis_connection, ["ab-1"])[0].status is JobStatus.FAILED


def test_the_overview_counts_what_waits_and_runs_most_urgent_first(redis_connection: redis.Redis) -> None:
    submit(redis_connection, "one")
    submit(redis_connection, "two")
    submit(redis_connection, "three", priority="high", needs=("checkpoint:a",))
    claim(redis_connection, NODE)
    claim(redis_connection, NODE)

    high, normal = queue_overview(redis_connection)

    assert (high.priority, high.needs, high.queued, high.running) == (Priority.HIGH, ["checkpoint:a"], 0, 1)
    assert high.oldest_seconds is None
    assert (normal.priority, normal.needs, normal.queued, normal.running) == (Priority.NORMAL, [], 1, 1)
    assert normal.oldest_seconds is not None
    assert 0 <= normal.oldest_seconds < 60
