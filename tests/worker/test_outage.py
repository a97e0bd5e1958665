"""Redis killed, frozen or refusing in the middle of a job, and back again with what it knew."""

import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from engine_server import wait_until
from fake_pipeline import FakePipeline
from fleet import Fleet
from own_redis import OwnRedis

from broker.cancel import CancelOutcome, cancel_runs
from queue_schemas.events import JobStatus
from storage.layout import attempt_prefix


@pytest.fixture
def redis_url(own_redis: OwnRedis) -> str:
    """A server that a test may end."""
    return own_redis.url


@pytest.fixture
def puller(fleet: Fleet) -> Iterator["subprocess.Popen[bytes]"]:
    # A lease as of a minute: what is tested is the outage, not the lease that ends in it.
    with fleet.watched(), fleet.pulling(lease_seconds=60) as process:
        yield process


@pytest.mark.parametrize(
    ("leave", "come_back"),
    [(OwnRedis.kill, OwnRedis.start), (OwnRedis.refuse_as_full, OwnRedis.accept)],
)
def test_a_job_that_ends_while_redis_is_away_or_takes_no_writes_succeeds_when_it_is_back(
    *,
    leave: Callable[[OwnRedis], None],
    come_back: Callable[[OwnRedis], None],
    own_redis: OwnRedis,
    fleet: Fleet,
    puller: "subprocess.Popen[bytes]",
    pipeline: FakePipeline,
) -> None:
    run_id, waiting = fleet.submit(prompt="hold"), fleet.submit(seed=8)
    wait_until(pipeline.in_step.is_set, what="the job is in a step")

    leave(own_redis)
    pipeline.release.set()
    stored = fleet.store / attempt_prefix(run_id, 1, 1) / "benchmark.json"
    wait_until(stored.exists, what="the film is stored")
    assert not fleet.has_manifest(run_id)  # it waits for the lease check
    come_back(own_redis)

    for run in (run_id, waiting):
        fleet.wait(run)
        assert fleet.manifest(run).attempt == 1
    assert puller.poll() is None
    assert pipeline.steps_run == 6


@pytest.mark.usefixtures("janitor")
@pytest.mark.parametrize("ends_meanwhile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_job_goes_on_over_a_redis_that_is_frozen_for_longer_than_its_lease(
    *, ends_meanwhile: bool, own_redis: OwnRedis, fleet: Fleet, pipeline: FakePipeline
) -> None:
    with fleet.pulling() as puller:
        run_id, waiting = fleet.submit(prompt="hold"), fleet.submit(seed=8)
        wait_until(pipeline.in_step.is_set, what="the job is in a step")

        own_redis.freeze()
        if ends_meanwhile:
            pipeline.release.set()
        time.sleep(2.5)  # longer than the lease of 1.5 s, and than the janitor's lock
        own_redis.thaw()
        pipeline.release.set()

        for run in (run_id, waiting):
            fleet.wait(run)
            assert fleet.manifest(run).attempt == 1
        assert puller.poll() is None
    assert pipeline.steps_run == 6


def test_an_idle_puller_outlives_a_redis_that_becomes_a_replica_for_a_while(
    own_redis: OwnRedis, fleet: Fleet, puller: "subprocess.Popen[bytes]"
) -> None:
    def waiting() -> set[str]:
        return {client["id"] for client in fleet.connection.client_list() if client["cmd"] == "xread"}

    wait_until(waiting, what="the puller waits for a job")
    before = waiting()

    own_redis.refuse_as_replica()  # which ends every blocking read with an error
    wait_until(lambda: not before & waiting(), what="Redis has told the puller")
    own_redis.accept()

    fleet.wait(fleet.submit(seed=8))
    assert puller.poll() is None


def test_a_job_whose_redis_stays_away_commits_by_the_stores_word_alone(
    own_redis: OwnRedis, fleet: Fleet, pipeline: FakePipeline
) -> None:
    with fleet.pulling(lease_seconds=60, patience_seconds=1.0):
        run_id = fleet.submit(prompt="hold")
        wait_until(pipeline.in_step.is_set, what="the job is in a step")
        own_redis.kill()
        pipeline.release.set()

        wait_until(lambda: fleet.has_manifest(run_id), what="the manifest is there")

    assert fleet.manifest(run_id).status is JobStatus.SUCCEEDED


def test_a_request_to_cancel_outlives_a_restart_of_redis(
    own_redis: OwnRedis, fleet: Fleet, pipeline: FakePipeline
) -> None:
    # The job process looks every two seconds, so that Redis is gone before it can have seen anything.
    with fleet.pulling(lease_seconds=60, cancel_poll_seconds=2.0):
        run_id = fleet.submit(prompt="hold", steps=50)
        wait_until(pipeline.in_step.is_set, what="the job is in a step")

        assert cancel_runs(fleet.connection, [f"{run_id}-1"]) == [CancelOutcome.SIGNALLED]
        own_redis.kill()
        own_redis.start()

        wait_until(pipeline.is_asked_to_stop, what="the engine is asked to stop")
        pipeline.release.set()
        fleet.wait(run_id, JobStatus.CANCELLED)
        wait_until(lambda: pipeline.cancelled == 1, what="the engine has stopped")
    assert fleet.manifest(run_id).status is JobStatus.CANCELLED
    assert pipeline.steps_run == 1
