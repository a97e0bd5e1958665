"""The client with its outputs in S3: the same answers as from a folder, and links instead of paths."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from client.client import H3Client
from client.collect import collect_files
from client.doctor import examine
from client.fetch import fetch_runs
from client.handle import Outcome
from client.settings import ClientSettings
from queue_schemas.events import JobStatus

SERVER = Path(__file__).parents[1] / "storage" / "s3_server.py"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIAFORTESTSONLY", "AWS_SECRET_ACCESS_KEY": "a-secret"}


@pytest.fixture
def bucket(free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of an empty prefix in a bucket of a service on this machine."""
    pytest.importorskip("moto", reason="moto[server] brings the S3 service of this test")
    import boto3.session

    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(free_port), str(tmp_path / "requests")],
        stderr=subprocess.DEVNULL,
        env={**os.environ, **CREDENTIALS},
    )
    try:
        deadline = time.monotonic() + 60
        while not _listens(free_port):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        endpoint = f"http://127.0.0.1:{free_port}"
        session = boto3.session.Session(*CREDENTIALS.values(), region_name="us-east-1")
        session.client("s3", endpoint_url=endpoint).create_bucket(Bucket="films")
        yield f"s3://films/h3?endpoint={endpoint}&region=us-east-1"
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_a_sweep_in_a_bucket_is_followed_fetched_collected_resumed_and_cancelled(
    redis_url: str, bucket: str, node_in: Callable[..., Any], tmp_path: Path
) -> None:
    client = H3Client(redis_url=redis_url, storage_url=bucket)
    node = node_in(client.store)
    node.failing = {"a wave"}

    handle = client.sweep(["a fox", "a wave"], list(range(10)), fields={"checkpoint": "h3"})
    node.run_all()
    last = {status.run_id: status.status for status in client.follow(handle)}

    assert sorted(last.values()) == [JobStatus.FAILED] * 10 + [JobStatus.SUCCEEDED] * 10
    result = client.result(handle.runs[0])
    assert result is not None
    assert result.video is not None
    with urlopen(result.video, timeout=10) as film:
        assert film.read() == b"film"
    assert len(fetch_runs(client.store, handle.runs[:2], to=tmp_path / "films").files) == 4
    found = collect_files(client.store, csv_file=tmp_path / "r.csv", json_file=None, sweep_id=handle.sweep_id)
    assert found.num_records == 20
    assert client.find(handle.runs[0].run_id[:8]).runs[0].run_id == handle.runs[0].run_id
    resumed = client.resume(handle.sweep_id, retry_failed=True)
    assert [run.outcome for run in resumed.runs] == [Outcome.DONE] * 10 + [Outcome.QUEUED] * 10
    client.cancel(resumed)
    assert {status.status for status in client.statuses(resumed)} == {
        JobStatus.SUCCEEDED,
        JobStatus.CANCELLED,
    }
    settings = ClientSettings(redis_url=redis_url, storage_url=bucket)
    storage = [finding for finding in examine(settings) if finding.subject.startswith("storage")]
    assert [finding.is_fine for finding in storage] == [True] * 4
