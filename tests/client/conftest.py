"""A fleet whose node is a few lines (`small_node.py`), on a real Redis and a real folder."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client.cli import run
from client.client import H3Client
from queue_schemas.results import Manifest
from storage.base import ArtifactStore

sys.path.insert(0, str(Path(__file__).parent))  # tests are no package; the node is a program as well

import small_node
from h3_command import Done, RunH3
from small_node import FakeNode


@pytest.fixture
def end_run() -> Callable[..., Manifest]:
    return small_node.end_run


@pytest.fixture
def make_job() -> Callable[..., dict[str, Any]]:
    return small_node.make_job


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def client(redis_url: str, storage: Path) -> H3Client:
    return H3Client(redis_url=redis_url, storage_url=str(storage))


@pytest.fixture
def node(redis_url: str, storage: Path) -> Iterator[FakeNode]:
    fake = FakeNode(redis_url, storage)
    with fake.connection:
        yield fake


@pytest.fixture
def node_in(redis_url: str) -> Iterator[Callable[[ArtifactStore], FakeNode]]:
    """Make a node that writes to a store of the test's choice."""
    made: list[FakeNode] = []

    def make(store: ArtifactStore) -> FakeNode:
        made.append(FakeNode(redis_url, store))
        return made[-1]

    yield make
    for fake in made:
        fake.connection.close()


@pytest.fixture
def working_node(node: FakeNode) -> Iterator[FakeNode]:
    """A node that ends whatever is queued, in a thread of its own, until the test ends."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.02):
            node.run_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield node
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the default storage is a folder below the working one


@pytest.fixture
def h3(own_folder: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunH3:
    """Run a command line in this process, in a folder of its own."""

    for name in [name for name in os.environ if name.startswith("H3_")]:
        monkeypatch.delenv(name)

    def run_here(*arguments: str | Path, **names: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in names.items():
                patch.setenv(name, value)
            code = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return run_here
