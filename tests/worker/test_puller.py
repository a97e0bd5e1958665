"""A real puller in its own process: jobs go in, files come out, hostile entries cost nothing."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from engine_server import wait_until
from fake_pipeline import FakePipeline
from fleet import Fleet, alive, children_of, small_fields

from broker import keys
from broker.letters import dead_letters
from broker.states import read_states
from queue_schemas import limits
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.events import JobStatus, Stage
from storage.layout import attempt_prefix, manifest_key
from worker.settings import child_environment


@pytest.fixture
def puller(fleet: Fleet) -> Iterator["subprocess.Popen[bytes]"]:
    with fleet.command("pull") as process:
        yield process


@pytest.fixture
def quick_fleet(fleet: Fleet) -> Iterator[None]:
    """A puller and a janitor whose times are short."""
    with fleet.pulling(), fleet.watched():
        yield


def submit_raw(connection: redis.Redis, entry: str, **fields: Any) -> None:
    """List an entry as anyone who reaches Redis could."""
    usual = {"status": "queued", "origin": "h3", "created_at": "2026-01-01T00:00:00Z", "timeout": 60}
    connection.hset(keys.entry_key(entry), mapping={**usual, **fields})
    list_raw(connection, entry)


def list_raw(connection: redis.Redis, *entries: str | bytes) -> None:
    """List ids in the queue that every node serves."""
    registration = json.dumps({"priority": "normal", "needs": []})
    connection.hset(keys.registered_key("h3"), keys.queue_name("h3"), registration)
    connection.rpush(keys.queue_key("h3"), *entries)


def call(function: str, *args: Any, **kwargs: Any) -> bytes:
    return zlib.compress(json.dumps([function, None, list(args), kwargs]).encode())


@pytest.mark.usefixtures("puller")
def test_a_job_goes_in_and_manifest_film_record_and_request_come_out(fleet: Fleet, tmp_path: Path) -> None:
    run_id = fleet.submit()

    fleet.wait(run_id)

    manifest = fleet.manifest(run_id)
    folder = attempt_prefix(run_id, 1, 1)
    assert (manifest.status, manifest.attempt, manifest.job_id) == (JobStatus.SUCCEEDED, 1, run_id)
    assert {role: file.name for role, file in manifest.files.items()} == {
        "request": f"{folder}/request.json",
        "video": f"{folder}/video.mp4",
        "benchmark": f"{folder}/benchmark.json",
    }
    for file in manifest.files.values():
        assert (fleet.store / file.name).stat().st_size == file.size_bytes
    record = BenchmarkRecord.model_validate_json((fleet.store / folder / "benchmark.json").read_bytes())
    assert record.request == small_fields() | record.request
    assert record.outputs == [manifest.files["video"]]
    assert record.media is not None
    assert (record.cold, record.jobs_served, record.evaluations) == (True, 0, 3)
    for name in ("queue_wait", "text_encode", "denoise", "mux", "upload", "engine_total", "total"):
        assert getattr(record.seconds, name) is not None, name
    assert record.seconds.upload + record.seconds.engine_total <= record.seconds.total
    progress = read_states(fleet.connection, [f"{run_id}-1"])[0].progress
    assert progress is not None
    assert progress.stage is Stage.UPLOAD
    assert list((tmp_path / "engine").iterdir()) == []  # the engine's copy is gone once it is stored


@pytest.mark.usefixtures("quick_fleet")
def test_a_poisoned_job_ends_with_a_manifest_that_says_why_and_the_next_one_runs(fleet: Fleet) -> None:
    poisoned = fleet.submit(prompt="a secret poison")
    healthy = fleet.submit()

    fleet.wait(healthy)

    fleet.wait(poisoned, JobStatus.FAILED)
    manifest = fleet.manifest(poisoned)
    assert manifest.attempt == 3
    assert manifest.status is JobStatus.FAILED
    assert manifest.error is not None
    assert (manifest.error.code, manifest.error.message) == (
        "internal",
        "ValueError: this prompt breaks the pipeline",
    )
    record = BenchmarkRecord.model_validate_json(
        (fleet.store / manifest.files["benchmark"].name).read_bytes()
    )
    assert (record.status, record.error) == (JobStatus.FAILED, manifest.error)
    assert record.environment is not None
    assert record.environment.node == "test-node"
    assert record.seconds.queue_wait is not None
    assert "video" not in manifest.files
    log = (fleet.store / manifest.files["log"].name).read_text()
    assert "internal: ValueError: this prompt breaks the pipeline" in log
    assert "secret" not in log
    (letter,) = dead_letters(fleet.connection, most=9)
    assert log.splitlines()[-1] in letter.log


@pytest.mark.usefixtures("puller")
def test_a_job_for_other_weights_fails_for_good_without_a_second_attempt(fleet: Fleet) -> None:
    run_id = fleet.submit(checkpoint="other")

    fleet.wait(run_id, JobStatus.FAILED)

    error = fleet.manifest(run_id).error
    assert error is not None
    assert (error.code, error.retryable) == ("checkpoint_mismatch", False)


@pytest.mark.usefixtures("puller")
def test_a_run_that_has_a_manifest_is_not_made_again(fleet: Fleet, pipeline: FakePipeline) -> None:
    run_id = fleet.submit()
    fleet.wait(run_id)
    before = (fleet.store / manifest_key(run_id, 1)).read_bytes()

    fleet.submit()

    wait_until(
        lambda: (
            fleet.status(run_id) is JobStatus.SUCCEEDED and fleet.connection.llen(keys.queue_key("h3")) == 0
        ),
        what="it succeeds again",
    )
    assert pipeline.steps_run == 3
    assert (fleet.store / manifest_key(run_id, 1)).read_bytes() == before


@pytest.mark.usefixtures("puller")
def test_nothing_but_the_one_task_ever_runs(fleet: Fleet, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    task = "worker.tasks.generate"
    hostile = {
        "shell-1": {"data": call("os.system", f"touch {marker}")},
        "unknown-1": {"data": call("worker.tasks.other")},
        "instance-1": {"data": zlib.compress(json.dumps([task, "x", [], {}]).encode())},
        "context-1": {"data": call(task, run_id="a", generation=1, job={}, context={})},
        "pickle-1": {"data": zlib.compress(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")},
        "callback-1": {
            "data": call("os.getcwd"),
            "failure_callback_name": "os.abort",
            "success_callback_name": "os.abort",
        },
    }
    for entry, fields in hostile.items():
        submit_raw(fleet.connection, entry, **fields)
    run_id = fleet.submit()

    fleet.wait(run_id)

    assert {
        state.entry_id: state.status for state in read_states(fleet.connection, list(hostile))
    } == dict.fromkeys(hostile, JobStatus.FAILED)
    assert not marker.exists()


def test_entries_that_cannot_be_read_are_parked_and_the_worker_lives_on(
    fleet: Fleet, puller: "subprocess.Popen[bytes]"
) -> None:
    good = call("worker.tasks.generate")
    submit_raw(fleet.connection, "status-1", data=good, status="nonsense")
    submit_raw(fleet.connection, "timeout-1", data=good, timeout="soon")
    submit_raw(fleet.connection, "date-1", data=good, created_at="yesterday")
    submit_raw(fleet.connection, "utf8-1", data=good, origin=b"\xff\xfe")
    submit_raw(fleet.connection, "bad:id", data=good)
    fleet.connection.set(keys.entry_key("string-1"), "no hash")
    list_raw(fleet.connection, "string-1", b"\xff\xfe", "expired-1")
    bomb = zlib.compress(b"0" * (limits.JOB_BYTES + 1))
    submit_raw(fleet.connection, "bomb-1", data=bomb)
    submit_raw(fleet.connection, "large-1", data=os.urandom(8_000_000))
    submit_raw(fleet.connection, "fields-1", data=good, description="x" * 8_000_000)
    run_id = fleet.submit()

    fleet.wait(run_id)

    parked = fleet.connection.hgetall(keys.poison_key("h3"))
    names = (
        "status-1",
        "timeout-1",
        "date-1",
        "utf8-1",
        "bad:id",
        "string-1",
        "bomb-1",
        "large-1",
        "fields-1",
    )
    assert set(parked) == {*(name.encode() for name in names), b"\xff\xfe"}
    assert b"inflates to more than" in parked[b"bomb-1"]
    assert b"at most" in parked[b"large-1"]
    assert fleet.connection.zcard(keys.leases_key(keys.queue_name("h3"))) == 0
    assert puller.poll() is None


def test_a_job_process_dies_with_its_puller_and_the_engine_cancels(
    fleet: Fleet, puller: "subprocess.Popen[bytes]", pipeline: FakePipeline
) -> None:
    run_id = fleet.submit(prompt="hold", steps=100)
    wait_until(pipeline.in_step.is_set, what="the job is in a step")
    (horse,) = children_of(puller.pid)

    puller.send_signal(signal.SIGKILL)

    wait_until(lambda: not alive(horse), what="the job process is gone")
    wait_until(pipeline.is_asked_to_stop, what="the engine has noticed")
    pipeline.release.set()
    wait_until(lambda: pipeline.cancelled == 1, what="the job has stopped")
    assert pipeline.steps_run == 1
    assert not fleet.has_manifest(run_id)


def test_a_puller_that_is_asked_to_end_finishes_its_job_first(
    fleet: Fleet, puller: "subprocess.Popen[bytes]", pipeline: FakePipeline
) -> None:
    run_id = fleet.submit(prompt="hold")
    wait_until(pipeline.in_step.is_set, what="the job is in a step")

    puller.send_signal(signal.SIGTERM)
    pipeline.release.set()

    assert puller.wait(20) == 0
    assert fleet.status(run_id) is JobStatus.SUCCEEDED


def test_an_idle_puller_ends_at_once(fleet: Fleet, puller: "subprocess.Popen[bytes]") -> None:
    def idle() -> bool:
        return [fleet.connection.hget(key, "state") for key in fleet.connection.smembers("rq:workers")] == [
            b"idle"
        ]

    wait_until(idle, what="the puller waits for a job")
    started = time.monotonic()

    puller.send_signal(signal.SIGTERM)

    assert puller.wait(20) == 0
    assert time.monotonic() - started < 10


def test_a_puller_without_redis_says_which_address_and_ends_with_3(fleet: Fleet, free_port: int) -> None:
    environment = child_environment(fleet.settings) | {
        "H3_REDIS_URL": f"redis://:hunter2@127.0.0.1:{free_port}"
    }

    ended = subprocess.run(
        [sys.executable, "-m", "worker.cli", "pull"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 3
    assert f"no Redis answers at 127.0.0.1:{free_port}" in ended.stderr
    assert "hunter2" not in ended.stderr
    assert "Traceback" not in ended.stderr
