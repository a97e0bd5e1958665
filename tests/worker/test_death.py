"""Processes killed with -9 at several points: the job runs again, and there is one manifest in the end."""

import os
import signal

import pytest
from engine_server import wait_until
from fake_pipeline import FakePipeline
from fleet import Fleet, alive, job_process_of

from broker import keys
from broker.claim import Claimant, claim
from broker.lease import Lease
from broker.letters import dead_letters
from queue_schemas.events import JobStatus
from storage.layout import attempt_prefix
from storage.local import LocalStore
from worker.attempt import create_manifest


def claim_briefly(fleet: Fleet) -> object:
    """Claim as a worker that dies at once."""
    return claim(fleet.connection, Claimant(fleet="h3", offers=(), worker="doomed", lease_seconds=0.2))


@pytest.mark.usefixtures("janitor")
@pytest.mark.parametrize("victims", ["job process", "puller", "both"])
def test_a_job_whose_processes_are_killed_runs_again(
    victims: str, fleet: Fleet, pipeline: FakePipeline
) -> None:
    run_id = fleet.submit(prompt="hold")
    with fleet.pulling() as first:
        wait_until(pipeline.in_step.is_set, what="the job is in a step")
        horse = job_process_of(first)

        if victims in ("job process", "both"):
            os.kill(horse, signal.SIGKILL)
        if victims in ("puller", "both"):
            first.kill()

        wait_until(lambda: not alive(horse), what="the job process is gone")
        wait_until(pipeline.is_asked_to_stop, what="the engine has noticed")
        assert not fleet.has_manifest(run_id)
        pipeline.release.set()
        with fleet.pulling():
            fleet.wait(run_id)

    manifest = fleet.manifest(run_id)
    assert (manifest.status, manifest.attempt) == (JobStatus.SUCCEEDED, 2)
    assert fleet.attempts_used(run_id) == 2
    left = fleet.store / attempt_prefix(run_id, 1, 1) / "log.txt"
    if victims == "job process":  # its puller has what it said
        assert "attempt 1\n" in left.read_text()
        assert "the job's process ended with signal 9" in left.read_text()
    else:
        assert not left.exists()


@pytest.mark.usefixtures("janitor")
def test_a_job_whose_puller_died_right_after_the_claim_runs_again(fleet: Fleet) -> None:
    run_id = fleet.submit()
    assert isinstance(claim_briefly(fleet), Lease)

    with fleet.pulling():
        fleet.wait(run_id)

    assert fleet.manifest(run_id).attempt == 2


@pytest.mark.usefixtures("janitor")
def test_a_job_killed_after_its_manifest_succeeds_and_does_not_run_again(
    fleet: Fleet, pipeline: FakePipeline
) -> None:
    run_id = fleet.submit()
    claim_briefly(fleet)
    create_manifest(LocalStore(fleet.store), run_id=run_id, generation=1, number=1, error=None, files={})

    fleet.wait(run_id)

    with fleet.pulling():
        fleet.wait(fleet.submit(seed=8))
    assert pipeline.steps_run == 3
    assert fleet.manifest(run_id).attempt == 1


@pytest.mark.usefixtures("janitor")
def test_a_job_that_kills_every_worker_ends_as_a_dead_letter_with_a_manifest(fleet: Fleet) -> None:
    run_id = fleet.submit()

    for number in (1, 2, 3):
        wait_until(
            lambda: (
                fleet.status(run_id) is JobStatus.QUEUED and fleet.connection.llen(keys.queue_key("h3")) == 1
            ),
            what=f"attempt {number} can be claimed",
        )
        claim_briefly(fleet)

    fleet.wait(run_id, JobStatus.FAILED)
    manifest = fleet.manifest(run_id)
    assert (manifest.status, manifest.attempt) == (JobStatus.FAILED, 3)
    assert manifest.error is not None
    assert "lease ran out" in manifest.error.message
    (letter,) = dead_letters(fleet.connection, most=9)
    assert (letter.entry, letter.attempt) == (f"{run_id}-1", 3)


@pytest.mark.usefixtures("janitor")
def test_a_stop_command_ends_the_job_as_cancelled(fleet: Fleet, pipeline: FakePipeline) -> None:
    from rq.command import send_stop_execution_command

    run_id = fleet.submit(prompt="hold")
    with fleet.pulling():
        wait_until(pipeline.in_step.is_set, what="the job is in a step")
        member = fleet.connection.hget(keys.entry_key(f"{run_id}-1"), "lease") or b""
        entry, _, execution = member.decode().partition(":")

        send_stop_execution_command(fleet.connection, entry, execution)

        fleet.wait(run_id, JobStatus.CANCELLED)
    assert fleet.manifest(run_id).status is JobStatus.CANCELLED


def test_a_second_signal_gives_the_job_back_and_no_attempt_is_used(
    fleet: Fleet, pipeline: FakePipeline
) -> None:
    run_id = fleet.submit(prompt="hold")
    with fleet.pulling() as first:
        wait_until(pipeline.in_step.is_set, what="the job is in a step")
        first.send_signal(signal.SIGTERM)
        key = fleet.connection.smembers(keys.WORKERS_KEY).pop()
        wait_until(
            lambda: fleet.connection.hexists(key, "shutdown_requested_date"), what="the first signal arrived"
        )

        first.send_signal(signal.SIGTERM)

        assert first.wait(20) == 0
    assert fleet.status(run_id) is JobStatus.QUEUED
    assert fleet.attempts_used(run_id) == 0
    assert not fleet.has_manifest(run_id)


@pytest.mark.usefixtures("janitor")
def test_a_puller_that_was_killed_is_taken_off_the_lists_and_nobody_else(fleet: Fleet) -> None:
    redis, ours = fleet.connection, keys.workers_key("h3")
    living, theirs = b"rq:worker:living", b"rq:worker:theirs"
    redis.sadd(ours, living)
    redis.sadd(keys.WORKERS_KEY, living, theirs)  # one of another application on this Redis
    redis.hset(living, "state", "idle")
    with fleet.pulling() as puller:
        wait_until(lambda: redis.scard(ours) == 2, what="it has registered")
        puller.kill()
    (dead,) = redis.smembers(ours) - {living}
    assert 0 < redis.ttl(dead) <= 120

    redis.delete(dead)  # as its time to live does

    wait_until(lambda: not redis.sismember(keys.WORKERS_KEY, dead), what="it is forgotten")
    assert redis.smembers(ours) == {living}
    assert redis.smembers(keys.WORKERS_KEY) == {living, theirs}


@pytest.mark.slow
def test_with_real_times_a_job_whose_node_dies_runs_again_within_two_minutes(
    fleet: Fleet, pipeline: FakePipeline
) -> None:
    run_id = fleet.submit(prompt="hold")
    with fleet.command("janitor"):
        with fleet.command("pull") as first:
            wait_until(pipeline.in_step.is_set, what="the job is in a step")
            first.kill()
        pipeline.release.set()
        with fleet.command("pull"):
            fleet.wait(run_id, seconds=120)

    assert fleet.manifest(run_id).attempt == 2
