"""Engines over a fake pipeline, behind a real HTTP server, and the jobs that go into them."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# tests/ is no package: helpers of this folder are found beside the test that imports them.
sys.path.insert(0, str(Path(__file__).parent))

import redis
from clock import Clock
from engine_server import served, wait_until
from fake_pipeline import FakePipeline
from fleet import Fleet, small_fields

from queue_schemas.requests import GenerateRequest, parse_request
from worker.doors import Doors
from worker.engine import Engine
from worker.service import EngineSlot
from worker.settings import Settings


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def eventually() -> Callable[..., None]:
    return wait_until


MakeFields = Callable[..., dict[str, Any]]


@pytest.fixture
def make_fields() -> MakeFields:
    return small_fields


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


@pytest.fixture
def fleet(redis_url: str, redis_connection: redis.Redis, engine_url: str, tmp_path: Path) -> Fleet:
    """The fixture `engine`, a queue and a folder; nothing pulls yet."""
    store = tmp_path / "store"
    settings = Settings(redis_url=redis_url, engine_url=engine_url, storage_url=str(store))
    return Fleet(redis_connection, settings)


@pytest.fixture
def janitor(fleet: Fleet) -> Iterator[None]:
    """A janitor with short times."""
    with fleet.watched():
        yield
