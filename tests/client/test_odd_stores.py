"""What is odd or damaged in a store costs a warning that names it, never the whole answer."""

import csv
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.cancel import CancelOutcome
from client.client import H3Client
from client.collect import collect_files
from client.fetch import fetch_runs
from client.handle import SweepHandle
from queue_schemas import limits
from queue_schemas.events import JobStatus
from queue_schemas.jobs import build_job
from queue_schemas.results import Manifest
from storage.layout import manifest_key, sweep_key
from storage.local import LocalStore

MakeJob = Callable[..., dict[str, Any]]
EndRun = Callable[..., Manifest]
SECRET = "not for you"


@pytest.fixture
def odd(storage: Path, make_job: MakeJob, end_run: EndRun) -> dict[str, str]:
    """A store with one good run and one of every odd kind; what is odd, by what its warning says of it."""
    store = LocalStore(storage)
    end_run(store, make_job(seed=0))
    (storage.parent / "secret.json").write_text(SECRET)

    def changed(seed: int, **fields: Any) -> str:
        manifest = end_run(store, make_job(seed=seed))
        key = manifest_key(manifest.run_id, 1)
        store.put_bytes(key, json.dumps({**manifest.model_dump(mode="json"), **fields}).encode())
        return key

    def record_of(seed: int, old: str, new: str) -> str:
        name = end_run(store, make_job(seed=seed)).files["benchmark"].name
        path = storage / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        return name

    outside = {"name": "../secret.json", "size_bytes": 1, "sha256": "0" * 64}
    found = {
        record_of(1, "2.5", "NaN"): "finite",
        record_of(2, "2.5", "1e999"): "finite",
        record_of(3, '"frames":5', '"frames":-Infinity'): "finite",
        changed(4, status="running"): "no end of a run",
        changed(5, generation=True): "generation",
        changed(6, note="x" * limits.RESULT_BYTES): "larger than",
        "../secret.json": "no storage key",
        "runs/copy of X": "no key",
        "runs/odd/1 (2)": "no key",
        "runs/odd/01/manifest.json": "no manifest's place",
        "runs/copy-of-X/1/manifest.json": "speaks of run",
    }
    changed(7, files={"benchmark": outside, "video": outside})
    torn = end_run(store, make_job(seed=8)).files["benchmark"].name
    (storage / torn).write_bytes((storage / torn).read_bytes()[:-20])
    found[torn] = "EOF"
    looped = manifest_key(end_run(store, make_job(seed=9)).run_id, 1)
    (storage / looped).unlink()
    (storage / looped).symlink_to(storage / looped)
    good = (storage / manifest_key(build_job(make_job(seed=0)).job_id, 1)).read_bytes()
    for name in ("runs/copy of X/1", "runs/copy of X/2", "runs/odd/1 (2)", "runs/odd/01", "runs/copy-of-X/1"):
        (storage / name).mkdir(parents=True)
        (storage / name / "manifest.json").write_bytes(good)
    store.put_bytes(sweep_key("sweep-torn"), b"{")
    found[sweep_key("sweep-torn")] = "no labels"
    (storage / ".DS_Store").write_text("")
    (storage / "runs" / ".DS_Store").write_text("")
    return found


def test_collecting_leaves_out_what_is_odd_and_names_each_once(
    odd: dict[str, str], storage: Path, tmp_path: Path, make_job: MakeJob
) -> None:
    found = collect_files(LocalStore(storage), csv_file=tmp_path / "r.csv", json_file=tmp_path / "r.json")

    (record,) = json.loads((tmp_path / "r.json").read_text())
    assert record["run_id"] == build_job(make_job(seed=0)).job_id
    for name, said in odd.items():
        told = [problem for problem in found.problems if name in problem]
        assert len(told) == 1, (name, found.problems)
        assert said in told[0]
    assert len(found.problems) == len(odd)
    assert SECRET not in (tmp_path / "r.csv").read_text() + "".join(found.problems)


@pytest.fixture
def everything(client: H3Client, odd: dict[str, str], make_job: MakeJob) -> SweepHandle:
    """A sweep of ten runs in the odd store, of which the first is good, found again by its id."""
    jobs = [make_job(seed=seed) for seed in range(10)]
    runs = [{"run_id": build_job(job).job_id, "job": job, "label": f"seed {job['seed']}"} for job in jobs]
    sweep = {"sweep_id": "sweep-odd", "created_at": "2026-01-01T00:00:00Z", "runs": runs}
    client.store.put_bytes(sweep_key("sweep-odd"), json.dumps(sweep).encode())
    found = client.find("sweep-odd")
    assert isinstance(found, SweepHandle)
    return found


def test_a_sweep_with_odd_runs_is_collected_read_fetched_and_followed(
    client: H3Client, everything: SweepHandle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = everything.runs[0].run_id

    with caplog.at_level(logging.WARNING):
        results = list(client.results(everything))
    collected = collect_files(client.store, csv_file=tmp_path / "r.csv", json_file=None, sweep_id="sweep-odd")
    fetched = fetch_runs(client.store, everything.runs, to=tmp_path / "films")
    statuses = client.statuses(everything)
    ended = {status.run_id for status in client.follow(everything) if status.status.terminal}

    assert [result.run_id for result in results] == [good]
    assert len(caplog.records) == 9
    assert (collected.num_records, len(collected.problems)) == (1, 9)
    with (tmp_path / "r.csv").open() as table:
        assert [row["run_id"] for row in csv.DictReader(table)] == [good]
    assert len([path for path in fetched.files if path.name.endswith(f"{good[:12]}.mp4")]) == 1
    assert not any(SECRET in path.read_bytes().decode(errors="replace") for path in fetched.files)
    assert len(fetched.problems) >= 5
    assert statuses[0].status is JobStatus.SUCCEEDED
    damaged = [status for status in statuses if status.error and "damaged" in status.error.message]
    assert len(damaged) == 4  # running, generation, too large, a link to itself
    assert {status.status for status in damaged} == {JobStatus.FAILED}
    assert ended == {run.run_id for run in everything.runs}


def test_cancelling_a_sweep_leaves_what_is_damaged_as_it_is(
    client: H3Client, everything: SweepHandle, storage: Path
) -> None:
    before = {
        path: path.read_bytes() for path in (storage / "runs").glob("*/1/manifest.json") if path.is_file()
    }

    outcomes = client.cancel(everything)

    assert set(outcomes.values()) == {CancelOutcome.ENDED}
    assert all(path.read_bytes() == content for path, content in before.items())
