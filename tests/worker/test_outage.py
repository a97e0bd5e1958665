"""Redis killed or frozen in the middle of a job, and back again with what it knew."""

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from fake_pipeline import FakePipeline
from fleet import has_manifest, manifest_of, running, short, status_of, submit
from own_redis import OwnRedis

from broker.cancel import CancelOutcome, cancel_runs
from queue_schemas.events import JobStatus
from worker.settings import Settings

MakeFields = Callable[..., dict[str, Any]]
Eventually = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def connection(own_redis: OwnRedis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_redis.url) as connection:
        yield connection


@pytest.fixture
def settings(own_redis: OwnRedis, engine_url: str, store: Path) -> Settings:
    return Settings(redis_url=own_redis.url, engine_url=engine_url, storage_url=str(store))


@pytest.fixture
def puller(settings: Settings) -> Iterator["subprocess.Popen[bytes]"]:
    # A lease as of a minute: what is tested is the outage, not the lease that ends in it.
    with running(settings, *short("janitor")), running(settings, *short("pull", lease_seconds=60)) as process:
        yield process


def test_a_job_that_ends_while_redis_is_away_succeeds_when_it_is_back(
    *,
    own_redis: OwnRedis,
    connection: redis.Redis,
    puller: "subprocess.Popen[bytes]",
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    run_id = submit(connection, make_fields(prompt="hold"))
    waiting = submit(connection, make_fields(seed=8))
    eventually(pipeline.in_step.is_set, what="the job is in a step")

    own_redis.kill()
    pipeline.release.set()
    stored = store / "runs" / run_id / "1" / "attempts" / "1" / "benchmark.json"
    eventually(stored.exists, what="the film is stored")
    assert not has_manifest(store, run_id)  # it waits for the lease check
    own_redis.start()

    for run in (run_id, waiting):
        eventually(lambda run=run: status_of(connection, run) is JobStatus.SUCCEEDED, what="both succeed")
        assert manifest_of(store, run).attempt == 1
    assert puller.poll() is None
    assert pipeline.steps_run == 6


@pytest.mark.parametrize("ends_meanwhile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_job_goes_on_over_a_redis_that_is_frozen_for_longer_than_its_lease(
    *,
    ends_meanwhile: bool,
    settings: Settings,
    own_redis: OwnRedis,
    connection: redis.Redis,
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    with running(settings, *short("janitor")), running(settings, *short("pull")) as puller:
        run_id = submit(connection, make_fields(prompt="hold"))
        waiting = submit(connection, make_fields(seed=8))
        eventually(pipeline.in_step.is_set, what="the job is in a step")

        own_redis.freeze()
        if ends_meanwhile:
            pipeline.release.set()
        time.sleep(2.5)  # longer than the lease of 1.5 s, and than the janitor's lock
        own_redis.thaw()
        pipeline.release.set()

        for run in (run_id, waiting):
            eventually(lambda run=run: status_of(connection, run) is JobStatus.SUCCEEDED, what="both succeed")
            assert manifest_of(store, run).attempt == 1
        assert puller.poll() is None
    assert pipeline.steps_run == 6


def test_a_job_that_ends_while_redis_takes_no_writes_succeeds_when_it_does_again(
    *,
    own_redis: OwnRedis,
    connection: redis.Redis,
    puller: "subprocess.Popen[bytes]",
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    run_id = submit(connection, make_fields(prompt="hold"))
    waiting = submit(connection, make_fields(seed=8))
    eventually(pipeline.in_step.is_set, what="the job is in a step")

    own_redis.refuse_as_full()
    pipeline.release.set()
    stored = store / "runs" / run_id / "1" / "attempts" / "1" / "benchmark.json"
    eventually(stored.exists, what="the film is stored")
    assert not has_manifest(store, run_id)  # it waits for the lease check
    own_redis.accept()

    for run in (run_id, waiting):
        eventually(lambda run=run: status_of(connection, run) is JobStatus.SUCCEEDED, what="both succeed")
        assert manifest_of(store, run).attempt == 1
    assert puller.poll() is None


def test_an_idle_puller_outlives_a_redis_that_becomes_a_replica_for_a_while(
    *,
    own_redis: OwnRedis,
    connection: redis.Redis,
    puller: "subprocess.Popen[bytes]",
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    run_id = submit(connection, make_fields())
    eventually(lambda: status_of(connection, run_id) is JobStatus.SUCCEEDED, what="the first job succeeds")

    own_redis.refuse_as_replica()  # which ends every blocking read with an error
    eventually(lambda: blocked(connection) == 0, what="Redis has told the puller")
    own_redis.accept()

    run_id = submit(connection, make_fields(seed=8))
    eventually(lambda: status_of(connection, run_id) is JobStatus.SUCCEEDED, what="the next job succeeds")
    assert puller.poll() is None


def blocked(connection: redis.Redis) -> int:
    return int(connection.info("clients")["blocked_clients"])


def test_a_job_whose_redis_stays_away_commits_by_the_stores_word_alone(
    *,
    settings: Settings,
    own_redis: OwnRedis,
    connection: redis.Redis,
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    with running(settings, *short("pull", lease_seconds=60, patience_seconds=1.0)):
        run_id = submit(connection, make_fields(prompt="hold"))
        eventually(pipeline.in_step.is_set, what="the job is in a step")
        own_redis.kill()
        pipeline.release.set()

        eventually(lambda: has_manifest(store, run_id), what="the manifest is there")

    assert manifest_of(store, run_id).status is JobStatus.SUCCEEDED


def test_a_request_to_cancel_outlives_a_restart_of_redis(
    *,
    settings: Settings,
    own_redis: OwnRedis,
    connection: redis.Redis,
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    # The job process looks every two seconds, so that Redis is gone before it can have seen anything.
    with running(settings, *short("pull", lease_seconds=60, cancel_poll_seconds=2.0)):
        run_id = submit(connection, make_fields(prompt="hold", steps=50))
        eventually(pipeline.in_step.is_set, what="the job is in a step")

        assert cancel_runs(connection, [f"{run_id}-1"]) == [CancelOutcome.SIGNALLED]
        own_redis.kill()
        own_redis.start()

        eventually(pipeline.is_asked_to_stop, what="the engine is asked to stop")
        pipeline.release.set()
        eventually(lambda: status_of(connection, run_id) is JobStatus.CANCELLED, what="the queue says so")
        eventually(lambda: pipeline.cancelled == 1, what="the engine has stopped")
    assert manifest_of(store, run_id).status is JobStatus.CANCELLED
    assert pipeline.steps_run == 1
