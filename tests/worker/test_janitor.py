"""The janitor in this process, its clock in hand: leading, waiting two beats, recovering."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from clock import Clock

from broker import keys
from broker.cancel import CancelOutcome, cancel_runs
from broker.claim import Claimant, claim
from broker.lease import Lease, renew
from broker.states import read_states
from broker.submit import QueuedRun, submit_runs
from queue_schemas.events import JobStatus
from storage.layout import manifest_key
from storage.local import LocalStore
from worker.attempt import read_manifest
from worker.janitor import Janitor
from worker.leasing import LeaseTimes

TIMES = LeaseTimes(beat_seconds=10, tick_seconds=10, backoff_seconds=0)


Eventually = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def make_janitor(connection: redis.Redis, store: LocalStore, clock: Clock, **times: float) -> Janitor:
    return Janitor(connection, store, fleet="h3", times=replace(TIMES, **times), clock=clock)


@pytest.fixture
def janitor(redis_connection: redis.Redis, store: LocalStore, clock: Clock) -> Janitor:
    return make_janitor(redis_connection, store, clock)


def expire(connection: redis.Redis, run_id: str = "ab") -> Lease:
    """Queue a run, claim it, and let the lease run out."""
    submit_runs(connection, [QueuedRun(run_id=run_id, generation=1, job={})])
    lease = claim(connection, Claimant(fleet="h3", offers=(), worker="test", lease_seconds=60))
    assert isinstance(lease, Lease)
    connection.zadd(keys.leases_key(lease.queue), {lease.member: 1})
    return lease


def status(connection: redis.Redis, run_id: str = "ab") -> JobStatus | None:
    return read_states(connection, [f"{run_id}-1"])[0].status


def test_a_new_leader_waits_two_beats_so_that_a_holder_comes_first(
    janitor: Janitor, clock: Clock, redis_connection: redis.Redis
) -> None:
    lease = expire(redis_connection)

    janitor.step()
    clock.now += 19.9
    janitor.step()
    assert renew(redis_connection, lease, seconds=0.001)

    redis_connection.zadd(keys.leases_key(lease.queue), {lease.member: 1})
    clock.now += 10.2
    janitor.step()
    assert not renew(redis_connection, lease, seconds=60)
    assert status(redis_connection) is JobStatus.QUEUED


def test_a_janitor_that_does_not_lead_recovers_nothing_until_the_other_ends(
    janitor: Janitor, clock: Clock, redis_connection: redis.Redis, store: LocalStore
) -> None:
    janitor.step()
    lease = expire(redis_connection)
    second = make_janitor(redis_connection, store, clock, beat_seconds=0, tick_seconds=0.001)

    second.step()
    assert renew(redis_connection, lease, seconds=0.001)

    janitor.close()
    redis_connection.zadd(keys.leases_key(lease.queue), {lease.member: 1})
    second.step()
    assert not renew(redis_connection, lease, seconds=60)


def test_one_entry_that_cannot_be_recovered_does_not_stop_the_others(
    redis_connection: redis.Redis, store: LocalStore, clock: Clock
) -> None:
    damaged, healthy = expire(redis_connection, "damaged"), expire(redis_connection, "healthy")
    store.put_bytes(manifest_key("damaged", 1), b"{")
    registered = keys.leases_key(healthy.queue)
    redis_connection.zadd(registered, {"malformed": 1, b"\xff:\xfe": 1})
    redis_connection.hset(keys.entry_key("odd"), mapping={"status": "started", "lease": "odd:x"})
    redis_connection.zadd(registered, {"odd:x": 1})

    make_janitor(redis_connection, store, clock, beat_seconds=0).step()

    assert status(redis_connection, "healthy") is JobStatus.QUEUED
    assert status(redis_connection, "damaged") is JobStatus.RUNNING  # looked at again when its lease is over
    assert not renew(redis_connection, damaged, seconds=60)
    assert redis_connection.hkeys(keys.poison_key("h3")) == [b"odd"]


def test_the_last_attempt_ends_with_a_manifest_and_a_dead_letter(
    redis_connection: redis.Redis, store: LocalStore, clock: Clock
) -> None:
    lease = expire(redis_connection)
    redis_connection.hset(keys.entry_key("ab-1"), "attempts_used", 3)

    make_janitor(redis_connection, store, clock, beat_seconds=0).step()

    manifest = read_manifest(store, "ab", 1)
    assert manifest is not None
    assert (manifest.status, manifest.attempt) == (JobStatus.FAILED, lease.number)
    assert status(redis_connection) is JobStatus.FAILED
    assert redis_connection.llen(keys.dead_key("h3")) == 1


def test_a_job_that_was_to_stop_when_its_worker_died_is_cancelled(
    redis_connection: redis.Redis, store: LocalStore, clock: Clock
) -> None:
    expire(redis_connection)
    assert cancel_runs(redis_connection, ["ab-1"]) == [CancelOutcome.SIGNALLED]

    make_janitor(redis_connection, store, clock, beat_seconds=0).step()

    assert status(redis_connection) is JobStatus.CANCELLED
    manifest = read_manifest(store, "ab", 1)
    assert manifest is not None
    assert manifest.status is JobStatus.CANCELLED
    assert redis_connection.llen(keys.dead_key("h3")) == 0


def test_a_store_that_is_away_leaves_the_entry_for_the_next_time(
    redis_connection: redis.Redis, tmp_path: Path, clock: Clock
) -> None:
    (tmp_path / "file").write_text("no folder")
    lost = LocalStore(tmp_path / "file" / "store")
    lease = expire(redis_connection)
    redis_connection.hset(keys.entry_key("ab-1"), "attempts_used", 3)

    make_janitor(redis_connection, lost, clock, beat_seconds=0).step()

    assert status(redis_connection) is JobStatus.RUNNING
    (member,) = redis_connection.zrange(keys.leases_key(lease.queue), 0, -1)
    assert member.startswith(b"ab-1:janitor-")


def test_what_writers_that_died_left_is_removed_once_a_day(
    janitor: Janitor,
    clock: Clock,
    redis_connection: redis.Redis,
    store: LocalStore,
    eventually: Eventually,
) -> None:
    store.put_bytes("runs/a/1/record.json", b"{}")

    def leave() -> Path:
        left = store.root / f"runs/a/1/.video.mp4.1.{'0' * 16}.tmp"
        left.touch()
        os.utime(left, (0, 0))
        return left

    left = leave()
    janitor.step()
    eventually(lambda: not left.exists(), what="it is removed")

    leave()
    clock.now += 10
    janitor.step()
    mark = keys.round_key("h3", "clean")
    assert 86_000 < redis_connection.ttl(mark) <= 86_400
    assert left.exists()

    redis_connection.delete(mark)
    clock.now += 10
    janitor.step()
    eventually(lambda: not left.exists(), what="it is removed again")
    assert store.read_bytes("runs/a/1/record.json", limit_bytes=9) == b"{}"


def test_a_redis_that_is_away_is_waited_for(store: LocalStore, clock: Clock, free_port: int) -> None:
    nowhere = redis.Redis(port=free_port, retry=None)

    janitor = make_janitor(nowhere, store, clock)
    janitor.step()
    janitor.close()


def test_a_redis_that_is_away_is_told_of_once_and_then_every_half_minute(
    store: LocalStore, clock: Clock, free_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = redis.Redis(port=free_port, retry=None)
    janitor = make_janitor(nowhere, store, clock)

    for _ in range(31):
        janitor.step()
        clock.now += 1.0

    assert caplog.text.count("Redis is away") == 2
