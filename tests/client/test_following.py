"""Following runs to their end and reading what they left, whatever Redis does meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from broker.errors import QueueUnavailableError
from client.client import H3Client
from queue_schemas.events import JobStatus, Stage
from queue_schemas.results import Manifest

if TYPE_CHECKING:
    from small_node import FakeNode

MakeJob = Callable[..., dict[str, Any]]
EndRun = Callable[..., Manifest]


def test_a_sweep_is_followed_from_queued_to_its_films(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    fields = make_job()
    handle = client.sweep(["a fox", "a wave"], [1, 2], fields={k: fields[k] for k in ("checkpoint", "steps")})
    names = {run.run_id: run.label for run in handle.runs}

    def work(_: float) -> None:
        node.failing = {"a wave"}
        call = node.begin()
        if call is not None and call["job"]["seed"] == 1:
            node.end(call)  # seed 2 stays running until the queue is empty
        elif call is None:
            for run in handle.runs:
                if run.job is not None and run.job.seed == 2:
                    node.end({"run_id": run.run_id, "generation": 1, "job": run.job.model_dump(mode="json")})

    updates = list(client.follow(handle, pause=work))
    seen = [(names[update.run_id], update.status) for update in updates]

    assert seen[:4] == [(label, JobStatus.QUEUED) for label in names.values()]
    running = [update for update in updates if update.status is JobStatus.RUNNING]
    assert {names[update.run_id] for update in running} == {
        "prompt 1: a fox, seed 2",
        "prompt 2: a wave, seed 2",
    }
    assert running[0].progress is not None
    assert (running[0].progress.stage, running[0].progress.step, running[0].progress.steps) == (
        Stage.DENOISE,
        2,
        4,
    )
    last = {names[update.run_id]: update for update in updates}
    assert [last[label].status for label in names.values()] == [JobStatus.SUCCEEDED] * 2 + [
        JobStatus.FAILED
    ] * 2
    assert last["prompt 2: a wave, seed 1"].error is not None
    assert last["prompt 2: a wave, seed 1"].error.message == "no step ended"


def test_results_hold_manifest_record_and_the_place_of_the_film(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    node.failing = {"a wave"}
    handle = client.sweep(["a fox", "a wave", "a stone"], [1], fields={"checkpoint": "h3"})
    for _ in range(2):
        call = node.begin()
        assert call is not None
        node.end(call)

    fox, wave = client.results(handle)  # the stone has not ended

    assert (fox.status, wave.status) == (JobStatus.SUCCEEDED, JobStatus.FAILED)
    assert fox.video is not None
    assert Path(fox.video).read_bytes() == b"film"
    assert fox.record is not None
    assert (fox.record.run_id, fox.record.seconds.total) == (fox.run_id, 2.5)
    assert fox.manifest.files["video"].sha256
    assert wave.video is None
    assert wave.record is not None
    assert wave.record.error is not None


def test_following_survives_a_queue_that_forgets_everything(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    handle = client.sweep(["a fox", "a wave"], [1], fields={"checkpoint": "h3"})
    call = node.begin()
    assert call is not None

    def forget(_: float) -> None:
        node.end(call)
        node.connection.flushall()

    last = {update.run_id: update for update in client.follow(handle, pause=forget)}

    fox, wave = (last[run.run_id] for run in handle.runs)
    assert fox.status is JobStatus.SUCCEEDED
    assert wave.status is JobStatus.FAILED
    assert wave.error is not None
    assert "does not know this run" in wave.error.message
    assert wave.error.retryable


def test_a_manifest_ends_a_run_that_the_queue_still_calls_running(
    client: H3Client, node: "FakeNode", make_job: MakeJob, end_run: EndRun
) -> None:
    handle = client.submit(make_job())
    node.begin()

    end_run(node.store, make_job())

    assert [update.status for update in client.follow(handle)] == [JobStatus.SUCCEEDED]


def test_an_end_without_a_manifest_is_a_failure_that_says_so(
    client: H3Client, node: "FakeNode", make_job: MakeJob
) -> None:
    handle = client.submit(make_job())
    node.begin()
    node.connection.hset(f"rq:job:{handle.run_id}-1", "status", "finished")

    (update,) = client.follow(handle)

    assert update.status is JobStatus.FAILED
    assert update.error is not None
    assert "storage has no manifest" in update.error.message


def test_a_finished_sweep_is_answered_without_a_queue(
    client: H3Client, node: "FakeNode", storage: Path
) -> None:
    handle = client.sweep(["a fox", "a wave"], [1], fields={"checkpoint": "h3"})
    node.run_all()
    alone = H3Client(redis_url="redis://127.0.0.1:1/0", storage_url=str(storage))

    found = alone.find(handle.sweep_id)

    assert [status.status for status in alone.statuses(found)] == [JobStatus.SUCCEEDED] * 2
    assert len(list(alone.follow(found))) == 2


def test_following_waits_for_a_redis_that_goes_away_and_reads_storage_meanwhile(
    client: H3Client, node: "FakeNode", make_job: MakeJob, end_run: EndRun
) -> None:
    handle = client.submit(make_job())

    def lose_redis(_: float) -> None:
        client.__dict__["_connection"] = redis.Redis(host="127.0.0.1", port=1, retry=None)
        end_run(node.store, make_job())

    updates = list(client.follow(handle, pause=lose_redis))

    assert [update.status for update in updates] == [JobStatus.QUEUED, JobStatus.SUCCEEDED]


def test_following_gives_up_on_a_redis_that_stays_away(
    client: H3Client, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = client.submit(make_job())
    client.__dict__["_connection"] = redis.Redis(host="127.0.0.1", port=1, retry=None)
    monkeypatch.setattr("client.following.QUEUE_PATIENCE_SECONDS", 0.0)

    with pytest.raises(QueueUnavailableError, match=r"127\.0\.0\.1:1"):
        list(client.follow(handle))


def test_an_outage_is_told_once_and_the_next_one_again(
    client: H3Client, make_job: MakeJob, end_run: EndRun, node: "FakeNode", caplog: pytest.LogCaptureFixture
) -> None:
    handle = client.submit(make_job())
    away, there = redis.Redis(host="127.0.0.1", port=1, retry=None), client.__dict__["_connection"]
    steps = iter([away, away, away, there, away, away])

    def next_step(_: float) -> None:
        connection = next(steps, None)
        if connection is None:
            end_run(node.store, make_job())
        else:
            client.__dict__["_connection"] = connection

    list(client.follow(handle, pause=next_step))

    assert len([record for record in caplog.records if "waiting for it" in record.message]) == 2
