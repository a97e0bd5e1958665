"""References of a job on their way to a node, with a real queue, store, puller and engine."""

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import small_media
from engine_server import wait_until
from fake_pipeline import FakePipeline
from fleet import Fleet, job_process_of, small_fields
from own_links import LinkServer, whole

from broker.cancel import cancel_runs
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobStatus
from queue_schemas.jobs import JOB_ADAPTER
from storage.identity import store_identity
from storage.known import KnownStore
from storage.layout import reference_key
from storage.links import DEFAULT_RULES
from storage.local import LocalStore
from worker.attempt import Attempt
from worker.engine import Engine
from worker.engine_client import EngineAddress
from worker.fetching import fetch_references


@pytest.fixture
def picture(tmp_path: Path) -> bytes:
    return small_media.picture(tmp_path / "fox.png").read_bytes()


@pytest.fixture
def key(picture: bytes) -> str:
    return reference_key(hashlib.sha256(picture).hexdigest(), "png")


@pytest.fixture
def linked(link_server: LinkServer, picture: bytes) -> Iterator[Callable[..., dict[str, Any]]]:
    """The fields of a job with a picture by link, at whose beginning the server waits to be let go."""
    let_go = threading.Event()

    def answer(caller: Any) -> None:
        let_go.wait(20)
        whole(picture)(caller)

    def fields() -> dict[str, Any]:
        source = link_server.link("/fox.png?signature=secret")
        frame = {"source": source, "sha256": hashlib.sha256(picture).hexdigest()}
        return {"workflow": "fl2va", "last_frame": frame}

    fields.let_go = let_go
    link_server.answers["/fox.png"] = answer
    yield fields
    let_go.set()


def record_of(fleet: Fleet, run_id: str) -> BenchmarkRecord:
    file = fleet.manifest(run_id).files["benchmark"]
    return BenchmarkRecord.model_validate_json((fleet.store / file.name).read_bytes())


def test_a_stored_reference_is_fetched_checked_and_proved_in_manifest_and_record(
    fleet: Fleet, picture: bytes, key: str, tmp_path: Path
) -> None:
    LocalStore(fleet.store).put_bytes(key, picture)
    references = [{"kind": "image", "source": key}]
    with fleet.pulling():
        run_id = fleet.submit(workflow="ref2va", references=references)
        fleet.wait(run_id)

    manifest, record = fleet.manifest(run_id), record_of(fleet, run_id)
    assert [(item.place, item.sha256) for item in manifest.references] == [
        ("references[0]", hashlib.sha256(picture).hexdigest())
    ]
    assert manifest.prompt is not None
    assert (record.references, record.prompt) == (manifest.references, manifest.prompt)
    assert record.seconds.reference_fetch is not None
    assert record.seconds.reference_prepare is not None
    assert record.request["references"][0]["source"] == key
    assert [path.name for path in (tmp_path / "engine" / "references").iterdir()] == [
        hashlib.sha256(picture).hexdigest()
    ]


@pytest.mark.parametrize(
    ("stored", "says"), [(b"another", "says; remove it from file:"), (None, "it is not in file:")]
)
def test_a_reference_that_is_wrong_or_missing_fails_the_run_at_once(
    fleet: Fleet, pipeline: FakePipeline, key: str, stored: bytes | None, says: str
) -> None:
    if stored is not None:
        LocalStore(fleet.store).put_bytes(key, stored)
    with fleet.pulling():
        run_id = fleet.submit(workflow="fl2va", first_frame=key)
        fleet.wait(run_id, JobStatus.FAILED)

        manifest = fleet.manifest(run_id)
        assert manifest.error is not None
        assert (manifest.error.code, manifest.error.retryable) == (ErrorCode.REFERENCE_UNREADABLE, False)
        assert manifest.error.message.startswith(f"first_frame ({key}): it ")
        assert says in manifest.error.message
        assert (manifest.attempt, pipeline.steps_run) == (1, 0)
        fleet.wait(fleet.submit())  # and the next job works


def test_a_job_process_killed_while_it_fetches_is_made_up_for_and_no_query_is_kept(
    fleet: Fleet, linked: Any, link_server: LinkServer, tmp_path: Path
) -> None:
    with fleet.pulling(link_server=str(link_server.ca_file)) as puller, fleet.watched():
        run_id = fleet.submit(**linked())
        wait_until(lambda: link_server.heads, what="the link is asked for")
        os.kill(job_process_of(puller), signal.SIGKILL)
        wait_until(lambda: len(link_server.heads) == 2, what="it is asked for again")
        linked.let_go.set()
        fleet.wait(run_id)

    assert fleet.manifest(run_id).attempt == 2
    left = list((tmp_path / "engine" / "references").iterdir())
    assert len([path for path in left if not path.name.startswith(".")]) == 1
    folder = fleet.store / "runs" / run_id
    assert not any(b"secret" in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_job_is_cancelled_while_it_fetches(fleet: Fleet, linked: Any, link_server: LinkServer) -> None:
    with fleet.pulling(link_server=str(link_server.ca_file)):
        run_id = fleet.submit(**linked())
        wait_until(lambda: link_server.heads, what="the link is asked for")
        started = time.monotonic()
        cancel_runs(fleet.connection, [f"{run_id}-1"])
        fleet.wait(run_id, JobStatus.CANCELLED)

        assert time.monotonic() - started < 5
        assert fleet.manifest(run_id).status is JobStatus.CANCELLED


def test_a_link_that_stays_away_uses_the_attempts_up(fleet: Fleet, picture: bytes) -> None:
    sha256 = hashlib.sha256(picture).hexdigest()
    link = {"source": "https://no-such-host.invalid/fox.png?signature=secret", "sha256": sha256}
    with fleet.pulling(), fleet.watched():
        run_id = fleet.submit(workflow="fl2va", first_frame=link)
        fleet.wait(run_id, JobStatus.FAILED)

    manifest = fleet.manifest(run_id)
    assert manifest.error is not None
    assert (manifest.attempt, manifest.error.code) == (3, ErrorCode.REFERENCE_UNREADABLE)
    folder = fleet.store / "runs" / run_id
    assert not any(b"secret" in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_store_that_is_away_is_waited_for(engine: Engine, picture: bytes, key: str, tmp_path: Path) -> None:
    place = tmp_path / "store"
    store = KnownStore(LocalStore(place), store_identity(LocalStore(place)))
    store.put_bytes(key, picture)
    job = JOB_ADAPTER.validate_python(small_fields(workflow="fl2va", first_frame=key))
    attempt = Attempt(
        run_id="r", generation=1, number=1, fields={}, queue_wait_seconds=None, job=job, ready=engine.ready()
    )
    place.rename(tmp_path / "elsewhere")
    back = threading.Timer(0.2, (tmp_path / "elsewhere").rename, [place])
    back.start()

    with fetch_references(
        attempt, store=store, links=DEFAULT_RULES, engine=EngineAddress("http://127.0.0.1:1"), seconds=20
    ) as gathered:
        assert gathered.files["first_frame"].read_bytes() == picture

    assert attempt.fetch_seconds is not None
    assert attempt.fetch_seconds < 0.4  # the wait for the store is none
    back.join()


def test_an_entry_whose_file_nobody_has_read_is_refused(fleet: Fleet) -> None:
    with fleet.pulling():
        run_id = fleet.submit(run_id="ab" * 16, workflow="fl2va", first_frame="https://example.com/a.png")
        fleet.wait(run_id, JobStatus.FAILED)

    manifest = fleet.manifest(run_id)
    assert manifest.error is not None
    assert (manifest.attempt, manifest.error.code) == (1, ErrorCode.INVALID_REQUEST)
