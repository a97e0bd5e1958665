"""Processes frozen beyond their lease: another puller takes over, and the late one writes nothing."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_server import served, wait_until
from fake_pipeline import FakePipeline
from fleet import Fleet, alive, job_process_of

from broker import keys
from worker.doors import Doors
from worker.engine import Engine
from worker.service import EngineSlot


@pytest.fixture
def second_pipeline() -> Iterator[FakePipeline]:
    pipeline = FakePipeline()
    yield pipeline
    pipeline.release.set()


@pytest.fixture
def second_node(fleet: Fleet, second_pipeline: FakePipeline, tmp_path: Path) -> Iterator[Fleet]:
    engine = Engine(second_pipeline, output_root=tmp_path / "engine2", node="second-node")
    with served(EngineSlot(engine), Doors()) as url:
        yield fleet.with_engine(url)
        second_pipeline.release.set()
    engine.close()


@pytest.mark.usefixtures("janitor")
@pytest.mark.parametrize("frozen", ["puller", "both"])
def test_a_frozen_worker_that_wakes_after_its_lease_was_taken_writes_nothing(
    *,
    frozen: str,
    fleet: Fleet,
    second_node: Fleet,
    pipeline: FakePipeline,
    second_pipeline: FakePipeline,
) -> None:
    run_id = fleet.submit(prompt="hold")
    entry = keys.entry_key(f"{run_id}-1")
    with fleet.pulling() as first:
        wait_until(pipeline.in_step.is_set, what="the first attempt is in a step")
        horse = job_process_of(first)
        first.send_signal(signal.SIGSTOP)
        if frozen == "both":
            os.kill(horse, signal.SIGSTOP)

        with second_node.pulling():
            wait_until(second_pipeline.in_step.is_set, what="the second attempt is in a step")
            taken = fleet.connection.hgetall(entry)
            pipeline.release.set()
            if frozen == "both":
                os.kill(horse, signal.SIGCONT)
                first.send_signal(signal.SIGCONT)
            else:
                # Nobody renews while it works on: it must find out by itself, right before the manifest.
                wait_until(lambda: not alive(horse), what="the first attempt has come to its end")
                first.send_signal(signal.SIGCONT)
            wait_until(lambda: not alive(horse), what="the late job process is gone")

            assert not fleet.has_manifest(run_id)
            assert fleet.connection.hgetall(entry) == taken
            second_pipeline.release.set()
            fleet.wait(run_id)
        assert first.poll() is None

    assert fleet.manifest(run_id).attempt == 2
    assert fleet.attempts_used(run_id) == 2
