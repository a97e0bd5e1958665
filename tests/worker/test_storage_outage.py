"""The store goes away and comes back: a film that is made is kept and stored, never made again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from engine_server import wait_until
from fake_pipeline import FakePipeline
from fleet import Fleet, alive, job_process_of
from own_s3 import OwnS3

from broker import keys
from broker.cancel import CancelOutcome, cancel_runs
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.events import JobStatus
from storage.identity import StoreIdentity, store_identity
from storage.layout import STORE_KEY
from storage.uri import open_store


def moved(place: Path) -> None:
    """Nothing is left of the folder."""


def unmounted(place: Path) -> None:
    place.mkdir()


def replaced(place: Path) -> None:
    place.write_text("in the way")


@contextmanager
def store_away(fleet: Fleet, leave: Callable[[Path], object] = replaced) -> Iterator[None]:
    """The folder is gone inside the block; nothing is written where it was."""
    elsewhere = fleet.store.with_name("elsewhere")
    fleet.store.rename(elsewhere)
    leave(fleet.store)
    yield
    if fleet.store.is_file():
        fleet.store.unlink()
    elif fleet.store.exists():
        fleet.store.rmdir()  # nobody wrote to it
    else:
        assert leave is moved
    elsewhere.rename(fleet.store)


@pytest.fixture
def output_root(tmp_path: Path) -> Path:
    """The output root of the fixture `engine`."""
    return tmp_path / "engine"


@contextmanager
def film_waiting(
    fleet: Fleet, pipeline: FakePipeline, output_root: Path, leave: Callable[[Path], object] = replaced
) -> Iterator[tuple[str, Path]]:
    """The id of a run that was made while the store is away, as it is inside the block, and its film."""
    run_id = fleet.submit(prompt="hold")
    wait_until(pipeline.in_step.is_set, what="the job is in a step")
    with store_away(fleet, leave):
        pipeline.release.set()
        film = output_root / "spool" / f"{run_id}-1" / "video.mp4"
        wait_until(film.exists, what="the film is kept")
        yield run_id, film


def record_of(fleet: Fleet, run_id: str) -> BenchmarkRecord:
    file = fleet.manifest(run_id).files["benchmark"]
    return BenchmarkRecord.model_validate_json((fleet.store / file.name).read_bytes())


def lease_end(fleet: Fleet, run_id: str) -> float:
    """When the lease of a run ends, in seconds of Redis' clock; 0 where nobody holds it."""
    queue = keys.queue_name("h3")
    leases = fleet.connection.zrange(keys.leases_key(queue), 0, -1, withscores=True)
    return max((end for member, end in leases if member.decode().startswith(f"{run_id}-1:")), default=0.0)


@pytest.mark.usefixtures("janitor")
@pytest.mark.parametrize("leave", [moved, unmounted, replaced])
def test_a_film_is_stored_when_its_store_is_back_and_is_not_made_again(
    fleet: Fleet, pipeline: FakePipeline, output_root: Path, leave: Callable[[Path], object]
) -> None:
    with fleet.pulling():
        with film_waiting(fleet, pipeline, output_root, leave) as (run_id, _):
            waiting = fleet.submit(seed=8)
            wait_until(lambda: fleet.status(waiting) is JobStatus.QUEUED, what="the next one waits")

        for run in (run_id, waiting):
            fleet.wait(run)
            assert fleet.manifest(run).attempt == 1

    assert pipeline.steps_run == 6
    assert list(output_root.rglob("*.mp4")) == []
    record = record_of(fleet, run_id)
    assert record.seconds.total is not None
    assert any("waited" in note for note in record.notes)


@pytest.mark.usefixtures("janitor")
def test_a_film_whose_processes_are_killed_while_it_waits_is_stored_by_the_next_attempt(
    fleet: Fleet, pipeline: FakePipeline, output_root: Path
) -> None:
    with fleet.pulling() as first, film_waiting(fleet, pipeline, output_root) as (run_id, _):
        horse = job_process_of(first)
        first.kill()
        wait_until(lambda: not alive(horse), what="the job process is gone")
    with fleet.pulling():
        fleet.wait(run_id)

    assert (fleet.manifest(run_id).attempt, pipeline.steps_run) == (2, 3)
    video = fleet.store / fleet.manifest(run_id).files["video"].name
    assert video.stat().st_size == fleet.manifest(run_id).files["video"].size_bytes
    assert list(output_root.rglob("*.mp4")) == []
    record = record_of(fleet, run_id)
    assert (record.evaluations, record.seconds.total) == (3, None)
    assert "made by attempt 1 of this run, which could not store it" in record.notes


@pytest.mark.slow  # starts a service three times
def test_a_service_that_ends_costs_neither_films_nor_attempts(
    fleet: Fleet, own_s3: OwnS3, pipeline: FakePipeline
) -> None:
    fleet = replace(fleet, settings=replace(fleet.settings, storage_url=own_s3.url))
    store = open_store(own_s3.url)
    same = StoreIdentity(store=store_identity(store)).model_dump_json().encode()
    with fleet.watched(), fleet.pulling():
        made = fleet.submit(prompt="hold")
        wait_until(pipeline.in_step.is_set, what="the job is in a step")
        own_s3.kill()
        pipeline.release.set()
        wait_until(lambda: pipeline.steps_run == 3, what="the film is made")
        own_s3.start()
        store.put_bytes(STORE_KEY, same)
        fleet.wait(made, seconds=60)

        own_s3.kill()
        begun, behind = fleet.submit(seed=8), fleet.submit(seed=9)
        fleet.wait(begun, JobStatus.RUNNING)
        first_end = lease_end(fleet, begun)
        wait_until(lambda: lease_end(fleet, begun) > first_end + 3.0, what="two leases have passed")
        assert (fleet.status(begun), fleet.status(behind)) == (JobStatus.RUNNING, JobStatus.QUEUED)
        own_s3.start()
        store.put_bytes(STORE_KEY, same)
        for run_id in (begun, behind):
            fleet.wait(run_id, seconds=60)

    assert [fleet.attempts_used(run_id) for run_id in (made, begun, behind)] == [1, 1, 1]
    assert pipeline.steps_run == 9


@pytest.mark.usefixtures("janitor")
def test_a_job_that_is_cancelled_while_its_film_waits_ends_as_cancelled(
    fleet: Fleet, pipeline: FakePipeline, output_root: Path
) -> None:
    with fleet.pulling():
        with film_waiting(fleet, pipeline, output_root) as (run_id, film):
            assert cancel_runs(fleet.connection, [f"{run_id}-1"]) == [CancelOutcome.SIGNALLED]

        fleet.wait(run_id, JobStatus.CANCELLED)
        fleet.wait(fleet.submit(seed=8))

    assert fleet.manifest(run_id).status is JobStatus.CANCELLED
    assert not film.exists()
