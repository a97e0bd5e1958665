"""Engines over a fake pipeline, behind a real HTTP server, and the jobs that go into them."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# tests/ is no package: helpers of this folder are found beside the test that imports them.
sys.path.insert(0, str(Path(__file__).parent))

from engine_server import served, wait_until
from fake_pipeline import CHECKPOINT, FakePipeline

from queue_schemas.requests import GenerateRequest, parse_request
from worker.engine import Engine
from worker.service import Doors, EngineSlot


@pytest.fixture
def eventually() -> Callable[..., None]:
    return wait_until


MakeFields = Callable[..., dict[str, Any]]


@pytest.fixture
def make_fields() -> MakeFields:
    """The fields of a job that the fake pipeline makes in milliseconds."""

    def make(**changes: Any) -> dict[str, Any]:
        small = {"width": 64, "height": 32, "frames": 5, "steps": 3, "seed": 7, "checkpoint": CHECKPOINT}
        return {"workflow": "t2va", "prompt": "a red fox", **small, **changes}

    return make


@pytest.fixture
def make_request(make_fields: MakeFields) -> Callable[..., GenerateRequest]:
    def make(**changes: Any) -> GenerateRequest:
        return parse_request(make_fields(**changes))

    return make


@pytest.fixture
def pipeline() -> Iterator[FakePipeline]:
    pipeline = FakePipeline()
    yield pipeline
    pipeline.release.set()


@pytest.fixture
def engine(pipeline: FakePipeline, tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(pipeline, output_root=tmp_path / "engine", node="test-node")
    yield engine
    pipeline.release.set()
    engine.close()


@pytest.fixture
def engine_url(engine: Engine, pipeline: FakePipeline) -> Iterator[str]:
    with served(EngineSlot(engine), Doors()) as url:
        yield url
        pipeline.release.set()
