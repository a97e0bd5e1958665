"""Stores to test: a folder, and a bucket of a real S3 service on this machine."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pytest

from storage.base import ArtifactStore
from storage.s3_address import parse_s3_address
from storage.uri import folder_of, open_store

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAFORTESTSONLY",
    "AWS_SECRET_ACCESS_KEY": "a-secret-that-no-message-may-show",
}


@dataclass(frozen=True)
class S3Server:
    """A running service and what it was asked."""

    endpoint: str
    requests_file: Path

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.requests_file.read_text().splitlines()]

    @cache  # noqa: B019 - a server lives as long as the tests that use it
    def client(self) -> Any:
        """Return a plain boto3 client, to look at buckets from outside."""
        import boto3.session

        session = boto3.session.Session(*CREDENTIALS.values(), region_name="us-east-1")
        return session.client("s3", endpoint_url=self.endpoint)

    def make_bucket(self) -> str:
        name = f"test-{uuid4().hex}"
        self.client().create_bucket(Bucket=name)
        return name


class StartS3Server(Protocol):
    """Start a service of one's own, over HTTPS when a certificate and its key are given."""

    def __call__(self, *, tls: Sequence[Path] = ()) -> AbstractContextManager[S3Server]: ...


@pytest.fixture(scope="session")
def start_s3_server(tmp_path_factory: pytest.TempPathFactory) -> StartS3Server:
    pytest.importorskip("moto", reason="moto[server] brings the S3 service of these tests")

    @contextmanager
    def start(*, tls: Sequence[Path] = ()) -> Iterator[S3Server]:
        folder, port = tmp_path_factory.mktemp("s3"), free_port_number()
        script = Path(__file__).with_name("s3_server.py")
        command = [sys.executable, str(script), str(port), str(folder / "requests.jsonl"), *map(str, tls)]
        # A listing's page of seven makes every longer listing a test of pagination.
        environment = os.environ | {"MOTO_S3_DEFAULT_MAX_KEYS": "7"}
        with (folder / "log.txt").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            wait_for_port(port, server=server, log=folder / "log.txt")
            scheme = "https" if tls else "http"
            yield S3Server(f"{scheme}://127.0.0.1:{port}", folder / "requests.jsonl")
        finally:
            server.kill()
            server.wait()

    return start


def wait_for_port(port: int, *, server: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.02)
    raise AssertionError(f"no S3 service on port {port}")


def free_port_number() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="session")
def s3_server(start_s3_server: StartS3Server) -> Iterator[S3Server]:
    """A service over plain HTTP for the whole session."""
    with start_s3_server() as server:
        yield server


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mapping[str, str]:
    """Credentials of this test alone, and nothing of the machine's own configuration."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    settings = CREDENTIALS | {
        "AWS_CONFIG_FILE": str(tmp_path / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "no-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return settings


@pytest.fixture
def s3_client(s3_server: S3Server, aws: Mapping[str, str]) -> Any:
    return s3_server.client()


@pytest.fixture
def s3_url(s3_server: S3Server, aws: Mapping[str, str]) -> str:
    """Address of an empty prefix in a bucket of this test's own."""
    return f"s3://{s3_server.make_bucket()}/films?endpoint={s3_server.endpoint}"


@pytest.fixture(params=["folder", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of an empty store, of each kind in turn."""
    if request.param == "folder":
        return (tmp_path / "store").as_uri()
    url: str = request.getfixturevalue("s3_url")
    return url


@pytest.fixture
def put_oddly(store_url: str, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Put something into the store of `store_url` under any name, as another program would."""
    if store_url.startswith("file:"):
        root = folder_of(store_url)

        def put_file(name: str) -> None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(b"odd")

        return put_file
    address, client = parse_s3_address(store_url), request.getfixturevalue("s3_client")
    return lambda name: client.put_object(Bucket=address.bucket, Key=address.object_name(name), Body=b"odd")


@pytest.fixture
def store(store_url: str) -> ArtifactStore:
    return open_store(store_url)
