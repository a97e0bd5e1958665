"""Leases: whoever holds one may change the entry, whoever lost it changes nothing."""

from collections.abc import Callable

import pytest
import redis

from broker import keys
from broker.cancel import cancel_runs
from broker.claim import Claimant, claim
from broker.lease import Lease, Requeued, renew, requeue, settle
from broker.letters import DeadLetter
from broker.nodes import announce
from broker.overview import fleet_counts
from broker.recovery import Expired, expired_leases, forget_dead, lead, list_due, resign, seize
from broker.states import read_states
from broker.submit import QueuedRun, submit_runs
from queue_schemas.events import JobStatus
from queue_schemas.nodes import NodeCard

LETTER = DeadLetter(entry="ab-1", attempt=1, reason="late")


def take(connection: redis.Redis, *, seconds: float = 60) -> Lease:
    submit_runs(connection, [QueuedRun(run_id="ab", generation=1, job={"prompt": "a fox"})])
    lease = claim(connection, Claimant(fleet="h3", offers=(), worker="test", lease_seconds=seconds))
    assert isinstance(lease, Lease)
    return lease


def status(connection: redis.Redis) -> JobStatus | None:
    return read_states(connection, ["ab-1"])[0].status


def everything(connection: redis.Redis) -> dict[bytes, object]:
    return {key: connection.dump(key) for key in connection.scan_iter()}


def seize_as_leader(connection: redis.Redis, expired: Expired) -> Lease | None:
    assert lead(connection, fleet="h3", token="leader", seconds=30) is not None
    return seize(connection, expired, fleet="h3", token="leader", execution="janitor", seconds=60)


def take_over(connection: redis.Redis, lease: Lease) -> Lease:
    """Let the lease run out and take it, as a janitor does."""
    connection.zadd(keys.leases_key(lease.queue), {lease.member: 1})
    (expired,) = expired_leases(connection, fleet="h3")
    taken = seize_as_leader(connection, expired)
    assert taken is not None
    return taken


def test_a_lease_is_renewed_also_when_it_ran_out_but_not_when_it_was_taken(
    redis_connection: redis.Redis,
) -> None:
    lease = take(redis_connection)
    key = keys.leases_key(lease.queue)
    redis_connection.zadd(key, {lease.member: 1})

    assert renew(redis_connection, lease, seconds=60)
    score = redis_connection.zscore(key, lease.member)
    assert score is not None
    assert 55 < score - redis_connection.time()[0] <= 61

    take_over(redis_connection, lease)
    assert not renew(redis_connection, lease, seconds=60)


@pytest.mark.parametrize("ended", [JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED])
def test_settling_ends_the_entry_and_gives_the_lease_back(
    redis_connection: redis.Redis, ended: JobStatus
) -> None:
    lease = take(redis_connection)

    assert settle(redis_connection, lease, status=ended, fleet="h3")

    assert status(redis_connection) is ended
    assert redis_connection.zcard(keys.leases_key(lease.queue)) == 0
    assert not redis_connection.exists(keys.execution_key(lease.member))
    assert redis_connection.ttl(keys.entry_key("ab-1")) > 0
    assert not settle(redis_connection, lease, status=JobStatus.FAILED, fleet="h3")
    assert status(redis_connection) is ended


@pytest.mark.parametrize(
    "late",
    [
        lambda c, lease: settle(c, lease, status=JobStatus.SUCCEEDED, fleet="h3", dead_letter=LETTER),
        lambda c, lease: requeue(c, lease, delay_seconds=0, counts=True, fleet="h3") is not Requeued.LOST,
        lambda c, lease: requeue(c, lease, delay_seconds=9, counts=False, fleet="h3") is not Requeued.LOST,
        lambda c, lease: renew(c, lease, seconds=60),
    ],
)
def test_one_whose_lease_was_taken_changes_nothing(
    redis_connection: redis.Redis, late: Callable[[redis.Redis, Lease], bool]
) -> None:
    lease = take(redis_connection)
    take_over(redis_connection, lease)
    before = everything(redis_connection)

    assert not late(redis_connection, lease)

    assert everything(redis_connection) == before


def test_a_retry_without_delay_is_first_in_its_queue_and_counts(redis_connection: redis.Redis) -> None:
    lease = take(redis_connection)
    submit_runs(redis_connection, [QueuedRun(run_id="later", generation=1, job={})])

    assert requeue(redis_connection, lease, delay_seconds=0, counts=True, fleet="h3") is Requeued.DONE

    assert redis_connection.lrange(keys.queue_key("h3"), 0, -1) == [b"ab-1", b"later-1"]
    again = claim(redis_connection, Claimant(fleet="h3", offers=(), worker="test", lease_seconds=60))
    assert isinstance(again, Lease)
    assert (again.entry, again.number, again.used) == ("ab-1", 2, 2)


def test_an_attempt_that_does_not_count_is_numbered_all_the_same(redis_connection: redis.Redis) -> None:
    lease = take(redis_connection)

    requeue(redis_connection, lease, delay_seconds=0, counts=False, fleet="h3")

    again = claim(redis_connection, Claimant(fleet="h3", offers=(), worker="test", lease_seconds=60))
    assert isinstance(again, Lease)
    assert (again.number, again.used) == (2, 1)


def test_a_delayed_retry_waits_until_it_is_due_and_can_be_cancelled(redis_connection: redis.Redis) -> None:
    lease = take(redis_connection)
    requeue(redis_connection, lease, delay_seconds=100, counts=True, fleet="h3")

    assert status(redis_connection) is JobStatus.QUEUED
    assert list_due(redis_connection, fleet="h3") == 0
    assert fleet_counts(redis_connection).due == 1
    redis_connection.zadd(keys.due_key("h3"), {"ab-1": 1, "gone-1": 1})
    assert list_due(redis_connection, fleet="h3") == 1
    assert redis_connection.lrange(keys.queue_key("h3"), 0, -1) == [b"ab-1"]
    assert fleet_counts(redis_connection).due == 0


def test_what_someone_wants_cancelled_is_not_tried_again(redis_connection: redis.Redis) -> None:
    lease = take(redis_connection)
    cancel_runs(redis_connection, ["ab-1"])

    outcome = requeue(redis_connection, lease, delay_seconds=0, counts=True, fleet="h3")

    assert outcome is Requeued.CANCELLED
    assert renew(redis_connection, lease, seconds=60)


def test_a_lease_that_still_runs_cannot_be_seized(redis_connection: redis.Redis) -> None:
    lease = take(redis_connection)

    assert expired_leases(redis_connection, fleet="h3") == []
    assert seize_as_leader(redis_connection, Expired(lease.queue, lease.member)) is None
    assert renew(redis_connection, lease, seconds=60)


def test_one_who_leads_no_more_takes_no_lease_from_a_holder_who_stood_still_as_well(
    redis_connection: redis.Redis,
) -> None:
    lease = take(redis_connection)
    lead(redis_connection, fleet="h3", token="a", seconds=30)
    redis_connection.zadd(keys.leases_key(lease.queue), {lease.member: 1})
    (expired,) = expired_leases(redis_connection, fleet="h3")
    redis_connection.delete(keys.leader_key("h3"))  # as when the server is frozen here, for longer than both

    taken = seize(redis_connection, expired, fleet="h3", token="a", execution="janitor", seconds=60)

    assert taken is None
    assert renew(redis_connection, lease, seconds=60)


@pytest.mark.parametrize("status", ["finished", "queued", None])
def test_a_leftover_lease_of_an_entry_that_does_not_run_is_swept_away(
    redis_connection: redis.Redis, status: str | None
) -> None:
    lease = take(redis_connection)
    redis_connection.zadd(keys.leases_key(lease.queue), {lease.member: 1})
    if status is None:
        redis_connection.delete(keys.entry_key("ab-1"))
    else:
        redis_connection.hset(keys.entry_key("ab-1"), "status", status)
    (expired,) = expired_leases(redis_connection, fleet="h3")

    assert seize_as_leader(redis_connection, expired) is None
    assert redis_connection.zcard(keys.leases_key(lease.queue)) == 0


def test_one_janitor_leads_until_its_lock_is_given_back_or_runs_out(redis_connection: redis.Redis) -> None:
    def asks(token: str) -> bool | None:
        return lead(redis_connection, fleet="h3", token=token, seconds=30)

    assert asks("a") is True
    assert asks("a") is False
    assert asks("b") is None
    resign(redis_connection, fleet="h3", token="b")
    assert asks("b") is None
    resign(redis_connection, fleet="h3", token="a")
    assert asks("b") is True
    assert 0 < redis_connection.pttl(keys.leader_key("h3")) <= 30_000


def test_nodes_that_never_said_goodbye_and_workers_that_would_never_expire_are_forgotten(
    redis_connection: redis.Redis,
) -> None:
    card = NodeCard(
        node="alive", checkpoint="h3", weights="real", device="cpu", attention_backends=[], started_at=""
    )
    announce(redis_connection, card, ttl_seconds=60)
    redis_connection.sadd(keys.nodes_key("h3"), "long-dead")
    redis_connection.sadd(keys.workers_key("h3"), "rq:worker:late")
    redis_connection.hset("rq:worker:late", "state", "idle")  # by one that woke up after its key was gone

    assert forget_dead(redis_connection, fleet="h3") == 1

    assert redis_connection.smembers(keys.nodes_key("h3")) == {b"alive"}
    assert 0 < redis_connection.ttl("rq:worker:late") <= 120
