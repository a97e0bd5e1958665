"""The spool: a film that could not be stored is found again, whole, by its run's next attempt."""

import hashlib
from pathlib import Path

import pytest
from clock import Clock

from queue_schemas.benchmark import Backends, CheckpointSet, Environment, OutputFile
from queue_schemas.results import GenerateResult
from storage.local import LocalStore
from worker.spool import FULL_FILMS, MadeBy, MadeFilm, Spool
from worker.spool_gate import PROBE_SECONDS, SpoolGate


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


def made_by(film: bytes, *, run_id: str = "ab", attempt: int = 1) -> MadeBy:
    file = OutputFile(name="video.mp4", size_bytes=len(film), sha256=hashlib.sha256(film).hexdigest())
    names = (name for name, field in Backends.model_fields.items() if field.is_required())
    result = GenerateResult(
        job_id="ab",
        output="runs/ab/1/attempts/1/video.mp4",
        job={"prompt": "a fox"},
        environment=Environment(node="n", device="cpu", platform="p", python="3", versions={}),
        checkpoint=CheckpointSet(name="h3", weights="real", transformer_layout="full", files=[]),
        backends=Backends(**dict.fromkeys(names, "sdpa")),
        cold=False,
        jobs_served=1,
        files=[file],
    )
    return MadeBy(run_id=run_id, generation=1, attempt=attempt, result=result)


def keep(spool: Spool, tmp_path: Path, film: bytes = b"film", **how: str) -> Path:
    (tmp_path / "made.mp4").write_bytes(film)
    return spool.keep(MadeFilm(tmp_path / "made.mp4", made_by(film, **how))).place


def test_a_kept_film_is_found_by_its_run_with_what_the_engine_said_of_it(
    spool: Spool, tmp_path: Path
) -> None:
    keep(spool, tmp_path)

    found = spool.find("ab", 1, job_id="ab")

    assert found is not None
    assert found.place.read_bytes() == b"film"
    assert found.made_by == made_by(b"film")
    assert spool.holds(found)
    assert spool.find("ab", 2, job_id="ab") is None
    assert not (tmp_path / "made.mp4").exists()
    spool.remove("ab", 1)
    assert spool.find("ab", 1, job_id="ab") is None


@pytest.mark.parametrize("damage", ["another job", "film", "size", "attempt.json", "gone"])
def test_what_is_not_whole_or_of_another_job_is_no_film(spool: Spool, tmp_path: Path, damage: str) -> None:
    film = keep(spool, tmp_path)
    match damage:
        case "film":
            film.write_bytes(b"flim")
        case "size":
            film.write_bytes(b"film and more")
        case "attempt.json":
            film.with_name("attempt.json").write_text("{")
        case "gone":
            film.unlink()

    assert spool.find("ab", 1, job_id="cd" if damage == "another job" else "ab") is None
    assert not film.parent.exists()


def test_a_spool_is_full_at_a_number_of_films_and_tidied_of_runs_that_ended(
    spool: Spool, tmp_path: Path
) -> None:
    (tmp_path / "spool" / "not an entry").mkdir(parents=True)
    for number in range(FULL_FILMS):
        assert not spool.is_full()
        keep(spool, tmp_path, run_id=f"run{number}")
    assert spool.is_full()

    spool.tidy(lambda run_id, generation: run_id != "run3")

    assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == ["not an entry", "run3-1"]


def test_where_the_spool_cannot_be_written_the_film_stays_where_it_is(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("in the way")

    film = keep(spool, tmp_path)

    assert film == tmp_path / "made.mp4"
    assert film.read_bytes() == b"film"
    assert not spool.is_full()


def test_nothing_is_claimed_while_the_spool_is_full_and_the_store_takes_nothing(
    spool: Spool, tmp_path: Path, clock: Clock
) -> None:
    store = LocalStore(tmp_path / "store")
    gate = SpoolGate(spool, store.conditional_writes, clock=clock)
    (tmp_path / "store").write_text("in the way")
    assert gate.is_open()

    for number in range(FULL_FILMS):
        keep(spool, tmp_path, run_id=f"run{number}")
    assert not gate.is_open()

    (tmp_path / "store").unlink()
    assert not gate.is_open()  # the store is not asked all the time
    clock.now += PROBE_SECONDS
    assert gate.is_open()
