"""Summaries of sweeps: written when the last run has ended, whatever Redis knows of the sweep."""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from broker import keys
from broker.submit import QueuedRun, submit_runs
from broker.sweeps import watch_sweep
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError, JobStatus
from queue_schemas.runs import Submission
from queue_schemas.summaries import SweepSummary
from queue_schemas.sweeps import Sweep, SweepRun
from storage.layout import summary_key, sweep_key
from storage.local import LocalStore
from worker.attempt import create_manifest
from worker.summaries import Summaries

LOST = JobError(code=ErrorCode.STALLED, message="no step ended", retryable=True)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def look(redis_connection: redis.Redis, store: LocalStore) -> Callable[[], None]:
    """Look at every sweep that is watched, as one janitor does again and again."""
    summaries = Summaries(redis_connection, store, fleet="h3", every_seconds=10)

    def act() -> None:
        for sweep_id in redis_connection.zrange(keys.sweeps_key("h3"), 0, -1):
            redis_connection.zadd(keys.sweeps_key("h3"), {sweep_id: 1})
        summaries.advance()

    return act


def write_sweep(store: LocalStore, *runs: str | tuple[str, int], sweep_id: str = "s1") -> None:
    asked = [(run, 1) if isinstance(run, str) else run for run in runs]
    sweep = Sweep(
        sweep_id=sweep_id,
        created_at="2026-01-01T00:00:00+00:00",
        runs=[SweepRun(run_id=run_id, generation=generation, job={}) for run_id, generation in asked],
    )
    store.put_bytes(sweep_key(sweep_id), sweep.model_dump_json().encode())


def queue(connection: redis.Redis, *run_ids: str, generation: int = 1, sweep_id: str = "s1") -> None:
    submission = Submission(sweep_id=sweep_id)
    submit_runs(
        connection,
        [
            QueuedRun(run_id=run_id, generation=generation, job={}, submission=submission)
            for run_id in run_ids
        ],
    )


def end(store: LocalStore, run_id: str, *, generation: int = 1, error: JobError | None = None) -> None:
    create_manifest(store, run_id=run_id, generation=generation, number=1, error=error, files={})


def read_summary(store: LocalStore, sweep_id: str = "s1") -> SweepSummary | None:
    data = store.read_bytes(summary_key(sweep_id), limit_bytes=100_000)
    return None if data is None else SweepSummary.model_validate_json(data)


def watched(connection: redis.Redis) -> int:
    return int(connection.zcard(keys.sweeps_key("h3")))


def test_a_sweep_gets_its_summary_when_its_last_run_has_ended(
    look: Callable[[], None], redis_connection: redis.Redis, store: LocalStore
) -> None:
    write_sweep(store, "one", "two", "three")
    queue(redis_connection, "one", "two", "three")
    end(store, "one")
    end(store, "two", error=LOST)
    look()
    assert read_summary(store) is None

    end(store, "three", error=LOST)
    end(store, "three", generation=2)
    look()

    summary = read_summary(store)
    assert summary is not None
    assert (summary.succeeded, summary.failed, summary.cancelled) == (2, 1, 0)
    assert [(run.run_id, run.generation, run.error) for run in summary.runs] == [
        ("one", 1, None),
        ("two", 1, ErrorCode.STALLED),
        ("three", 2, None),
    ]
    assert watched(redis_connection) == 0


def test_a_sweep_whose_runs_had_all_succeeded_before_gets_one_and_always_the_same(
    look: Callable[[], None], redis_connection: redis.Redis, store: LocalStore
) -> None:
    write_sweep(store, "one", ("two", 2))
    end(store, "one")
    end(store, "two", generation=2)

    watch_sweep(redis_connection, "s1", fleet="h3")
    look()
    first = read_summary(store)
    watch_sweep(redis_connection, "s1", fleet="h3")
    look()

    assert first is not None
    assert first.succeeded == 2
    assert read_summary(store) == first


def test_a_sweep_of_done_and_new_runs_waits_for_the_new_ones(
    look: Callable[[], None], redis_connection: redis.Redis, store: LocalStore
) -> None:
    write_sweep(store, "done", "new")
    end(store, "done")
    queue(redis_connection, "new")
    look()
    assert read_summary(store) is None

    end(store, "new")
    look()

    summary = read_summary(store)
    assert summary is not None
    assert summary.succeeded == 2


def test_sweeps_that_redis_lost_get_their_summaries_at_the_next_round(
    look: Callable[[], None], redis_connection: redis.Redis, store: LocalStore
) -> None:
    sweeps = [f"s{number:02}" for number in range(12)]
    for sweep_id in sweeps:
        write_sweep(store, "one", sweep_id=sweep_id)
    write_sweep(store, "one", "two", sweep_id="unended")
    end(store, "one")

    look()
    assert sum(read_summary(store, sweep_id) is not None for sweep_id in sweeps) == 10  # some at a time
    look()

    assert all(read_summary(store, sweep_id) for sweep_id in sweeps)
    assert watched(redis_connection) == 0  # nobody is at the other one: it is not asked for all the time

    end(store, "two")
    look()
    assert read_summary(store, "unended") is None
    redis_connection.delete(keys.round_key("h3", "summaries"))  # an hour later
    look()
    assert read_summary(store, "unended") is not None


def test_a_sweep_that_is_taken_up_again_is_looked_at_anew(
    look: Callable[[], None], redis_connection: redis.Redis, store: LocalStore
) -> None:
    write_sweep(store, "one", "two")
    queue(redis_connection, "one", "two")
    end(store, "one", error=LOST)
    look()

    write_sweep(store, ("one", 2), "two")  # as `--retry-failed` does
    queue(redis_connection, "one", generation=2)
    end(store, "two")
    look()
    look()
    assert read_summary(store) is None

    end(store, "one", generation=2)
    look()

    summary = read_summary(store)
    assert summary is not None
    assert [(run.generation, run.status) for run in summary.runs] == [
        (2, JobStatus.SUCCEEDED),
        (1, JobStatus.SUCCEEDED),
    ]


@pytest.mark.parametrize("content", [None, b"{"])
def test_a_sweep_that_storage_does_not_know_is_forgotten(
    look: Callable[[], None], redis_connection: redis.Redis, store: LocalStore, content: bytes | None
) -> None:
    watch_sweep(redis_connection, "s1", fleet="h3")
    if content is not None:
        store.put_bytes(sweep_key("s1"), content)

    look()

    assert watched(redis_connection) == 0
    assert read_summary(store) is None
