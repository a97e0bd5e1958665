"""A real puller among several queues: urgent before old, only what its node offers; cancelled runs stop."""

from collections.abc import Iterator

import pytest
from engine_server import wait_until
from fake_pipeline import FakePipeline
from fleet import Fleet

from broker.cancel import CancelOutcome, cancel_runs
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.events import JobStatus
from queue_schemas.runs import Priority


@pytest.fixture
def puller(fleet: Fleet) -> Iterator[None]:
    with fleet.pulling():
        yield


def test_urgent_runs_come_first_and_what_the_node_lacks_waits(fleet: Fleet) -> None:
    low = fleet.submit(seed=1, priority=Priority.LOW)
    elsewhere = fleet.submit(seed=2, needs=("checkpoint:other",), priority=Priority.HIGH)
    old = fleet.submit(seed=3, needs=("attention:sdpa", "checkpoint:h3-fake"))
    new = fleet.submit(seed=4)
    high = fleet.submit(seed=5, needs=("node:test-node",), priority=Priority.HIGH)

    with fleet.pulling():
        fleet.wait(low)

    finished = {name: fleet.manifest(name).finished_at for name in (high, old, new, low)}
    assert sorted(finished, key=finished.__getitem__) == [high, old, new, low]
    assert fleet.status(elsewhere) is JobStatus.QUEUED


@pytest.mark.usefixtures("puller")
def test_a_running_job_that_is_cancelled_stops_at_its_next_step(fleet: Fleet, pipeline: FakePipeline) -> None:
    run_id = fleet.submit(prompt="hold", steps=50, sweep_id="s")
    wait_until(pipeline.in_step.is_set, what="the job is in a step")

    assert cancel_runs(fleet.connection, [f"{run_id}-1"], sweep_id="s") == [CancelOutcome.SIGNALLED]

    wait_until(pipeline.is_asked_to_stop, what="the engine is asked to stop")
    pipeline.release.set()
    fleet.wait(run_id, JobStatus.CANCELLED)
    wait_until(lambda: pipeline.cancelled == 1, what="the engine has stopped")
    assert pipeline.steps_run == 1
    manifest = fleet.manifest(run_id)
    assert (manifest.status, manifest.attempt) == (JobStatus.CANCELLED, 1)
    record = fleet.store / manifest.files["benchmark"].name
    assert BenchmarkRecord.model_validate_json(record.read_bytes()).status is JobStatus.CANCELLED
    fleet.wait(fleet.submit())


@pytest.mark.usefixtures("puller")
def test_a_queued_job_that_is_cancelled_never_runs(fleet: Fleet, pipeline: FakePipeline) -> None:
    first = fleet.submit(prompt="hold")
    wait_until(pipeline.in_step.is_set, what="the first is in a step")
    second = fleet.submit(seed=8)

    assert cancel_runs(fleet.connection, [f"{second}-1"]) == [CancelOutcome.REMOVED]

    pipeline.release.set()
    fleet.wait(fleet.submit(seed=9))
    assert fleet.status(first) is JobStatus.SUCCEEDED
    assert fleet.status(second) is JobStatus.CANCELLED
    assert not fleet.has_manifest(second)  # whoever cancels writes it
    assert pipeline.steps_run == 6
