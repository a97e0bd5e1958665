"""A real puller among several queues: urgent before old, only what its node offers; cancelled runs stop."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from fake_pipeline import FakePipeline
from fleet import has_manifest, manifest_of, running, short, status_of, submit

from broker.cancel import CancelOutcome, cancel_runs
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.events import JobStatus
from queue_schemas.runs import Priority
from worker.settings import Settings

MakeFields = Callable[..., dict[str, Any]]
Eventually = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def settings(redis_url: str, engine_url: str, store: Path) -> Settings:
    return Settings(redis_url=redis_url, engine_url=engine_url, storage_url=str(store))


@pytest.fixture
def puller(settings: Settings) -> Iterator[None]:
    with running(settings, *short("pull")):
        yield


def test_urgent_runs_come_first_and_what_the_node_lacks_waits(
    settings: Settings,
    redis_connection: redis.Redis,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    def run(seed: int, **how: Any) -> str:
        return submit(redis_connection, make_fields(seed=seed), **how)

    low = run(1, priority=Priority.LOW)
    elsewhere = run(2, needs=("checkpoint:other",), priority=Priority.HIGH)
    old = run(3, needs=("attention:sdpa", "checkpoint:h3-fake"))
    new = run(4)
    high = run(5, needs=("node:test-node",), priority=Priority.HIGH)

    with running(settings, *short("pull")):
        eventually(lambda: status_of(redis_connection, low) is JobStatus.SUCCEEDED, what="the last one ends")

    finished = {name: manifest_of(store, name).finished_at for name in (high, old, new, low)}
    assert sorted(finished, key=finished.__getitem__) == [high, old, new, low]
    assert status_of(redis_connection, elsewhere) is JobStatus.QUEUED


@pytest.mark.usefixtures("puller")
def test_a_running_job_that_is_cancelled_stops_at_its_next_step(
    redis_connection: redis.Redis,
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    run_id = submit(redis_connection, make_fields(prompt="hold", steps=50), sweep_id="s")
    eventually(pipeline.in_step.is_set, what="the job is in a step")

    assert cancel_runs(redis_connection, [f"{run_id}-1"], sweep_id="s") == [CancelOutcome.SIGNALLED]

    eventually(pipeline.is_asked_to_stop, what="the engine is asked to stop")
    pipeline.release.set()
    eventually(lambda: status_of(redis_connection, run_id) is JobStatus.CANCELLED, what="the queue says so")
    eventually(lambda: pipeline.cancelled == 1, what="the engine has stopped")
    assert pipeline.steps_run == 1
    manifest = manifest_of(store, run_id)
    assert (manifest.status, manifest.attempt) == (JobStatus.CANCELLED, 1)
    record = BenchmarkRecord.model_validate_json((store / manifest.files["benchmark"].name).read_bytes())
    assert record.status is JobStatus.CANCELLED
    other = submit(redis_connection, make_fields())
    eventually(lambda: status_of(redis_connection, other) is JobStatus.SUCCEEDED, what="the next one runs")


@pytest.mark.usefixtures("puller")
def test_a_queued_job_that_is_cancelled_never_runs(
    redis_connection: redis.Redis,
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    first = submit(redis_connection, make_fields(prompt="hold"))
    eventually(pipeline.in_step.is_set, what="the first is in a step")
    second = submit(redis_connection, make_fields(seed=8))

    assert cancel_runs(redis_connection, [f"{second}-1"]) == [CancelOutcome.REMOVED]

    pipeline.release.set()
    third = submit(redis_connection, make_fields(seed=9))
    eventually(lambda: status_of(redis_connection, third) is JobStatus.SUCCEEDED, what="the third runs")
    assert status_of(redis_connection, first) is JobStatus.SUCCEEDED
    assert status_of(redis_connection, second) is JobStatus.CANCELLED
    assert not has_manifest(store, second)  # whoever cancels writes it
    assert pipeline.steps_run == 6
