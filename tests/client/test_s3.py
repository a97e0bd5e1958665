"""The client with its outputs in S3: the same answers as from a folder, and links instead of paths."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from own_s3 import OwnS3

from client.client import H3Client
from client.collect import collect_files
from client.doctor import examine
from client.fetch import fetch_runs
from client.handle import Outcome
from client.settings import ClientSettings
from queue_schemas.events import JobStatus


@pytest.fixture
def bucket(own_s3: OwnS3) -> str:
    """Address of an empty prefix in a bucket of a service on this machine."""
    return own_s3.url


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
