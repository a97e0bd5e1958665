"""Processes killed with -9 at several points: the job runs again, and there is one manifest in the end."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from fake_pipeline import FakePipeline
from fleet import alive, has_manifest, job_process_of, manifest_of, running, short, status_of, submit

from broker import keys
from broker.claim import Claimant, claim
from broker.lease import Lease
from queue_schemas.events import JobStatus
from storage.local import LocalStore
from worker.attempt import create_manifest
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
def janitor(settings: Settings) -> Iterator[None]:
    with running(settings, *short("janitor")):
        yield


@pytest.mark.usefixtures("janitor")
@pytest.mark.parametrize("victims", ["job process", "puller", "both"])
def test_a_job_whose_processes_are_killed_runs_again(
    *,
    victims: str,
    settings: Settings,
    redis_connection: redis.Redis,
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    run_id = submit(redis_connection, make_fields(prompt="hold"))
    with running(settings, *short("pull")) as first:
        eventually(pipeline.in_step.is_set, what="the job is in a step")
        horse = job_process_of(first)

        if victims in ("job process", "both"):
            os.kill(horse, signal.SIGKILL)
        if victims in ("puller", "both"):
            first.kill()

        eventually(lambda: not alive(horse), what="the job process is gone")
        eventually(pipeline.is_asked_to_stop, what="the engine has noticed")
        assert not has_manifest(store, run_id)
        pipeline.release.set()
        with running(settings, *short("pull")):
            eventually(
                lambda: status_of(redis_connection, run_id) is JobStatus.SUCCEEDED, what="it runs again"
            )

    manifest = manifest_of(store, run_id)
    assert (manifest.status, manifest.attempt) == (JobStatus.SUCCEEDED, 2)
    assert redis_connection.hget(keys.entry_key(f"{run_id}-1"), "attempts_used") == b"2"


@pytest.mark.usefixtures("janitor")
def test_a_job_whose_puller_died_right_after_the_claim_runs_again(
    settings: Settings,
    redis_connection: redis.Redis,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    run_id = submit(redis_connection, make_fields())
    assert isinstance(claim_briefly(redis_connection), Lease)

    with running(settings, *short("pull")):
        eventually(lambda: status_of(redis_connection, run_id) is JobStatus.SUCCEEDED, what="it runs again")

    assert manifest_of(store, run_id).attempt == 2


@pytest.mark.usefixtures("janitor")
def test_a_job_killed_after_its_manifest_succeeds_and_does_not_run_again(
    *,
    settings: Settings,
    redis_connection: redis.Redis,
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    run_id = submit(redis_connection, make_fields())
    claim_briefly(redis_connection)
    create_manifest(LocalStore(store), run_id=run_id, generation=1, number=1, error=None, files={})

    eventually(lambda: status_of(redis_connection, run_id) is JobStatus.SUCCEEDED, what="the queue hears")

    with running(settings, *short("pull")):
        other = submit(redis_connection, make_fields(seed=8))
        eventually(
            lambda: status_of(redis_connection, other) is JobStatus.SUCCEEDED, what="the next one runs"
        )
    assert pipeline.steps_run == 3
    assert manifest_of(store, run_id).attempt == 1


@pytest.mark.usefixtures("janitor")
def test_a_job_that_kills_every_worker_ends_as_a_dead_letter_with_a_manifest(
    redis_connection: redis.Redis, store: Path, make_fields: MakeFields, eventually: Eventually
) -> None:
    run_id = submit(redis_connection, make_fields())

    for number in (1, 2, 3):
        eventually(
            lambda: (
                status_of(redis_connection, run_id) is JobStatus.QUEUED
                and redis_connection.llen(keys.queue_key("h3")) == 1
            ),
            what=f"attempt {number} can be claimed",
        )
        claim_briefly(redis_connection)

    eventually(lambda: status_of(redis_connection, run_id) is JobStatus.FAILED, what="it is given up")
    manifest = manifest_of(store, run_id)
    assert (manifest.status, manifest.attempt) == (JobStatus.FAILED, 3)
    assert manifest.error is not None
    assert "lease ran out" in manifest.error.message
    (letter,) = redis_connection.lrange(keys.dead_key("h3"), 0, -1)
    assert f"{run_id}-1".encode() in letter


@pytest.mark.usefixtures("janitor")
def test_a_stop_command_ends_the_job_as_cancelled(
    *,
    settings: Settings,
    redis_connection: redis.Redis,
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    from rq.command import send_stop_execution_command

    run_id = submit(redis_connection, make_fields(prompt="hold"))
    with running(settings, *short("pull")):
        eventually(pipeline.in_step.is_set, what="the job is in a step")
        member = redis_connection.hget(keys.entry_key(f"{run_id}-1"), "lease") or b""
        entry, _, execution = member.decode().partition(":")

        send_stop_execution_command(redis_connection, entry, execution)

        eventually(lambda: status_of(redis_connection, run_id) is JobStatus.CANCELLED, what="it is stopped")
    assert manifest_of(store, run_id).status is JobStatus.CANCELLED


def test_a_second_signal_gives_the_job_back_and_no_attempt_is_used(
    *,
    settings: Settings,
    redis_connection: redis.Redis,
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    run_id = submit(redis_connection, make_fields(prompt="hold"))
    with running(settings, *short("pull")) as first:
        eventually(pipeline.in_step.is_set, what="the job is in a step")
        first.send_signal(signal.SIGTERM)
        key = redis_connection.smembers("rq:workers").pop()
        eventually(
            lambda: redis_connection.hexists(key, "shutdown_requested_date"), what="the first signal arrived"
        )

        first.send_signal(signal.SIGTERM)

        assert first.wait(20) == 0
    assert status_of(redis_connection, run_id) is JobStatus.QUEUED
    assert redis_connection.hget(keys.entry_key(f"{run_id}-1"), "attempts_used") == b"0"
    assert not has_manifest(store, run_id)


@pytest.mark.usefixtures("janitor")
def test_a_puller_that_was_killed_is_taken_off_the_lists_and_nobody_else(
    settings: Settings, redis_connection: redis.Redis, eventually: Eventually
) -> None:
    theirs = "rq:worker:theirs"
    redis_connection.sadd(keys.WORKERS_KEY, theirs)  # of another application on this Redis
    with running(settings, *short("pull")) as first, running(settings, *short("pull")):
        ours = keys.workers_key("h3")
        eventually(lambda: redis_connection.scard(ours) == 2, what="both have registered")
        first.kill()
        (dead,) = (k for k in redis_connection.smembers(ours) if f"-{first.pid}-".encode() in k)
        assert 0 < redis_connection.ttl(dead) <= 120

        redis_connection.delete(dead)  # as its time to live does

        eventually(lambda: not redis_connection.sismember(keys.WORKERS_KEY, dead), what="it is forgotten")
        assert redis_connection.scard(ours) == 1
        assert redis_connection.smembers(keys.WORKERS_KEY) == {
            *redis_connection.smembers(ours),
            theirs.encode(),
        }


@pytest.mark.slow
def test_with_real_times_a_job_whose_node_dies_runs_again_within_two_minutes(
    *,
    settings: Settings,
    redis_connection: redis.Redis,
    pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    run_id = submit(redis_connection, make_fields(prompt="hold"))
    with running(settings, "-m", "worker.cli", "janitor"):
        with running(settings, "-m", "worker.cli", "pull") as first:
            eventually(pipeline.in_step.is_set, what="the job is in a step")
            first.kill()
        pipeline.release.set()
        with running(settings, "-m", "worker.cli", "pull"):
            eventually(
                lambda: status_of(redis_connection, run_id) is JobStatus.SUCCEEDED,
                what="it runs again",
                seconds=120,
            )

    assert manifest_of(store, run_id).attempt == 2


def claim_briefly(connection: redis.Redis) -> object:
    """Claim as a worker that dies at once."""
    return claim(connection, Claimant(fleet="h3", offers=(), worker="doomed", lease_seconds=0.2))
