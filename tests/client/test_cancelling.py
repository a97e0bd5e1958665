"""Cancelling: durable, by the last who wants a run, and told by the manifest for good."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from own_redis import OwnRedis

from broker import keys
from broker.cancel import CancelOutcome, cancel_runs, is_cancelled
from broker.errors import QueueUnavailableError
from broker.turns import turns
from client.client import H3Client
from client.errors import UnknownRunError
from client.handle import Outcome
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobStatus
from queue_schemas.results import Manifest
from storage.base import ArtifactStore
from storage.layout import manifest_key

if TYPE_CHECKING:
    from small_node import FakeNode

MakeJob = Callable[..., dict[str, Any]]
EndRun = Callable[..., Manifest]


def test_what_waits_is_cancelled_at_once_and_stays_so(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    handle = client.sweep(["a fox", "a wave"], [1], fields={"checkpoint": "h3"})

    outcomes = client.cancel(handle)
    again = client.cancel(client.find(handle.sweep_id))

    assert set(outcomes.values()) == {CancelOutcome.REMOVED}
    assert set(again.values()) == {CancelOutcome.ENDED}
    assert node.queued() == []
    node.connection.flushall()
    statuses = client.statuses(client.find(handle.sweep_id))
    assert [status.status for status in statuses] == [JobStatus.CANCELLED] * 2
    assert statuses[0].error is not None
    assert statuses[0].error.code is ErrorCode.CANCELLED
    assert [run.outcome for run in client.resume(handle.sweep_id).runs] == [Outcome.ENDED] * 2


def test_a_cancelled_run_is_queued_again_as_its_next_generation(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    client.cancel(client.submit(make_job()))

    again = client.submit(make_job())

    assert (again.outcome, again.generation) == (Outcome.QUEUED, 2)


def test_what_runs_is_told_to_stop(client: H3Client, node: "FakeNode", make_job: MakeJob) -> None:
    run = client.submit(make_job())
    node.begin()

    assert client.cancel(run) == {run.run_id: CancelOutcome.SIGNALLED}
    assert is_cancelled(node.connection, f"{run.run_id}-1", fleet="h3")
    assert client.get(run.run_id).status is JobStatus.RUNNING


def test_a_run_that_two_sweeps_want_goes_when_the_last_lets_go(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    first, second = client.submit(make_job()), client.submit(make_job())

    assert client.cancel(first) == {first.run_id: CancelOutcome.KEPT_FOR_OTHERS}
    assert len(node.queued()) == 1
    assert client.cancel(second) == {first.run_id: CancelOutcome.REMOVED}

    third, fourth = client.submit(make_job()), client.submit(make_job())
    assert third.run_id == fourth.run_id
    assert client.cancel(third, force=True) == {first.run_id: CancelOutcome.REMOVED}


def test_a_run_that_ended_or_that_redis_forgot(
    client: H3Client, node: "FakeNode", make_job: MakeJob, end_run: EndRun
) -> None:
    done, lost = client.submit(make_job(seed=1)), client.submit(make_job(seed=2))
    node.end(node.begin() or {})
    node.connection.flushall()

    assert client.cancel(done) == {done.run_id: CancelOutcome.ENDED}
    assert client.get(done.run_id).status is JobStatus.SUCCEEDED
    assert client.cancel(lost) == {lost.run_id: CancelOutcome.REMOVED}
    assert client.get(lost.run_id).status is JobStatus.CANCELLED


def test_a_cancel_that_broke_off_before_its_manifest_is_made_good_by_the_next(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    run = client.submit(make_job())
    cancel_runs(node.connection, [f"{run.run_id}-1"], sweep_id=run.sweep_id)

    assert client.cancel(run) == {run.run_id: CancelOutcome.REMOVED}
    assert client.get(run.run_id).manifest is not None


def test_where_the_store_does_not_decide_a_cancelled_manifest_waits_for_its_turn(
    client: H3Client,
    node: "FakeNode",
    make_job: MakeJob,
    end_run: EndRun,
    careless_store: ArtifactStore,
) -> None:
    client.store = careless_store
    run = client.submit(make_job())
    entry = keys.entry_key(f"{run.run_id}-1")

    with ThreadPoolExecutor(1) as thread, turns(node.connection, fleet="h3")(manifest_key(run.run_id, 1)):
        asked = thread.submit(client.cancel, run)
        while node.connection.hget(entry, "status") != b"canceled":
            assert not asked.done()
        end_run(careless_store, make_job())  # a node whose lease ran out commits just now

    assert asked.result() == {run.run_id: CancelOutcome.ENDED}
    assert client.get(run.run_id).status is JobStatus.SUCCEEDED


def test_a_run_is_cancelled_in_the_queue_while_storage_is_away(
    client: H3Client, node: "FakeNode", make_job: MakeJob, storage: Path, redis_url: str
) -> None:
    run = client.submit(make_job())
    storage.rename(storage.with_name("away"))
    storage.write_text("in the way")

    found = client.cancel_in_queue(run.run_id)

    assert found == {run.run_id: CancelOutcome.REMOVED}
    assert node.queued() == []
    assert client.cancel_in_queue("0" * 32) == {}


def test_a_cancel_waits_for_a_redis_that_starts_anew(
    own_redis: OwnRedis, storage: Path, free_port: int
) -> None:
    client = H3Client(redis_url=own_redis.url, storage_url=str(storage))
    own_redis.kill()

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(client.wait_for_queue, seconds=20.0)
        own_redis.start()
        waiting.result()

    with pytest.raises(QueueUnavailableError):
        H3Client(redis_url=f"redis://127.0.0.1:{free_port + 1}/0").wait_for_queue(seconds=0.0)


def test_an_entry_that_no_node_could_read_is_no_run(client: H3Client, node: "FakeNode") -> None:
    node.connection.hset("rq:job:pickle-1", mapping={"status": "failed", "fleet": "h3"})
    node.connection.hset("h3:poison", "pickle-1", "DeserializationError")

    with pytest.raises(UnknownRunError):
        client.find("pickle")
