"""Processes frozen beyond their lease: another puller takes over, and the late one writes nothing."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from engine_server import served
from fake_pipeline import FakePipeline
from fleet import alive, has_manifest, job_process_of, manifest_of, running, short, status_of, submit

from broker import keys
from queue_schemas.events import JobStatus
from worker.engine import Engine
from worker.service import Doors, EngineSlot
from worker.settings import Settings

MakeFields = Callable[..., dict[str, Any]]
Eventually = Callable[..., None]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def second_pipeline() -> Iterator[FakePipeline]:
    pipeline = FakePipeline()
    yield pipeline
    pipeline.release.set()


@pytest.fixture
def second_engine_url(second_pipeline: FakePipeline, tmp_path: Path) -> Iterator[str]:
    engine = Engine(second_pipeline, output_root=tmp_path / "engine2", node="second-node")
    with served(EngineSlot(engine), Doors()) as url:
        yield url
        second_pipeline.release.set()
    engine.close()


@pytest.fixture
def settings(redis_url: str, engine_url: str, store: Path) -> Settings:
    return Settings(redis_url=redis_url, engine_url=engine_url, storage_url=str(store))


@pytest.fixture
def other_settings(redis_url: str, second_engine_url: str, store: Path) -> Settings:
    return Settings(redis_url=redis_url, engine_url=second_engine_url, storage_url=str(store))


@pytest.fixture
def janitor(settings: Settings) -> Iterator[None]:
    with running(settings, *short("janitor")):
        yield


@pytest.mark.usefixtures("janitor")
@pytest.mark.parametrize("frozen", ["puller", "both"])
def test_a_frozen_worker_that_wakes_after_its_lease_was_taken_writes_nothing(
    *,
    frozen: str,
    settings: Settings,
    other_settings: Settings,
    redis_connection: redis.Redis,
    pipeline: FakePipeline,
    second_pipeline: FakePipeline,
    store: Path,
    make_fields: MakeFields,
    eventually: Eventually,
) -> None:
    run_id = submit(redis_connection, make_fields(prompt="hold"))
    entry = keys.entry_key(f"{run_id}-1")
    with running(settings, *short("pull")) as first:
        eventually(pipeline.in_step.is_set, what="the first attempt is in a step")
        horse = job_process_of(first)
        first.send_signal(signal.SIGSTOP)
        if frozen == "both":
            os.kill(horse, signal.SIGSTOP)

        with running(other_settings, *short("pull")):
            eventually(second_pipeline.in_step.is_set, what="the second attempt is in a step")
            taken = redis_connection.hgetall(entry)
            pipeline.release.set()
            if frozen == "both":
                os.kill(horse, signal.SIGCONT)
                first.send_signal(signal.SIGCONT)
            else:
                # Nobody renews while it works on: it must find out by itself, right before the manifest.
                eventually(lambda: not alive(horse), what="the first attempt has come to its end")
                first.send_signal(signal.SIGCONT)
            eventually(lambda: not alive(horse), what="the late job process is gone")

            assert not has_manifest(store, run_id)
            assert redis_connection.hgetall(entry) == taken
            second_pipeline.release.set()
            eventually(
                lambda: status_of(redis_connection, run_id) is JobStatus.SUCCEEDED, what="the second succeeds"
            )
        assert first.poll() is None

    assert manifest_of(store, run_id).attempt == 2
    assert redis_connection.hget(entry, "attempts_used") == b"2"
