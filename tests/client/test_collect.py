"""Records of all runs, from storage alone, as one table and one list."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.records import RecordError, columns, flatten, parse_record
from client.client import H3Client
from client.collect import Collected, collect_files, records_in
from client.errors import CollectTargetError, UnknownRunError
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.events import JobStatus
from queue_schemas.jobs import build_job
from queue_schemas.results import Manifest
from storage.layout import attempt_prefix, manifest_key
from storage.local import LocalStore

if TYPE_CHECKING:
    from small_node import FakeNode

MakeJob = Callable[..., dict[str, Any]]
EndRun = Callable[..., Manifest]


@pytest.fixture
def store(storage: Path) -> LocalStore:
    return LocalStore(storage)


def split(store: LocalStore, **asked: Any) -> tuple[list[Collected], list[str]]:
    """Records and problems."""
    found = list(records_in(store, **asked))
    return [f for f in found if isinstance(f, Collected)], [f for f in found if isinstance(f, str)]


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def record(**fields: Any) -> BenchmarkRecord:
    base = {"run_id": "a", "job_id": "a", "generation": 1, "attempt": 1, "status": "succeeded"}
    times = {"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:03Z"}
    return BenchmarkRecord.model_validate({**base, "request": {}, **times, **fields})


def test_every_manifests_record_is_collected_in_order_of_run_and_generation(
    store: LocalStore, make_job: MakeJob, end_run: EndRun
) -> None:
    end_run(store, make_job(), generation=1, failed=True)
    end_run(store, make_job(), generation=2)
    end_run(store, make_job(seed=8))

    found, problems = split(store)

    assert problems == []
    expected = sorted([(build_job(make_job()).job_id, 1), (build_job(make_job()).job_id, 2)])
    expected = sorted([*expected, (build_job(make_job(seed=8)).job_id, 1)])
    assert [(f.record.run_id, f.record.generation) for f in found] == expected
    assert sorted(str(f.record.status) for f in found) == ["failed", "succeeded", "succeeded"]


def test_a_cancelled_generation_that_was_remade_is_no_problem(
    store: LocalStore, make_job: MakeJob, end_run: EndRun
) -> None:
    manifest = end_run(store, make_job(), generation=2)
    cancelled = manifest.model_copy(update={"generation": 1, "status": JobStatus.CANCELLED, "files": {}})
    lonely = cancelled.model_copy(update={"run_id": "lonely"})
    for each in (cancelled, lonely):
        store.put_bytes(manifest_key(each.run_id, 1), each.model_dump_json().encode())

    found, problems = split(store)

    assert [f.record.generation for f in found] == [2]
    assert problems == ["run lonely, generation 1: cancelled before it ran"]


def test_only_the_attempt_that_a_manifest_names_counts(
    store: LocalStore, make_job: MakeJob, end_run: EndRun
) -> None:
    manifest = end_run(store, make_job())
    late = store.read_bytes(manifest.files["benchmark"].name, limit_bytes=100_000)
    assert late is not None
    store.put_bytes(f"{attempt_prefix(manifest.run_id, 1, 2)}/benchmark.json", late)
    store.put_bytes("runs/unfinished/1/attempts/1/benchmark.json", late)

    assert len(split(store)[0]) == 1


def test_what_is_damaged_is_reported_by_key_and_left_out(
    store: LocalStore, make_job: MakeJob, end_run: EndRun
) -> None:
    good = end_run(store, make_job(seed=0))
    broken = end_run(store, make_job(seed=1)).files["benchmark"].name
    missing = end_run(store, make_job(seed=2)).files["benchmark"].name
    foreign = end_run(store, make_job(seed=3)).files["benchmark"].name
    huge = end_run(store, make_job(seed=4)).files["benchmark"].name
    store.put_bytes(broken, b'{"run_id": ')
    (store.root / missing).unlink()
    other = store.read_bytes(good.files["benchmark"].name, limit_bytes=100_000)
    assert other is not None
    store.put_bytes(foreign, other)
    store.put_bytes(huge, b" " * 300_000)
    store.put_bytes(manifest_key("torn", 1), b"{}")
    outside = good.model_dump(mode="json") | {"run_id": "outside"}
    outside["files"]["benchmark"]["name"] = "../../etc/passwd"
    store.put_bytes(manifest_key("outside", 1), json.dumps(outside).encode())
    bare = good.model_dump(mode="json") | {"run_id": "bare", "files": {}}
    store.put_bytes(manifest_key("bare", 1), json.dumps(bare).encode())

    found, problems = split(store)

    assert [f.record.run_id for f in found] == [good.run_id]
    for named in (broken, missing, foreign, huge, manifest_key("torn", 1), "../../etc/passwd", "bare"):
        assert sum(named in problem for problem in problems) == 1
    assert len(problems) == 7


def test_files_hold_one_row_and_one_entry_per_record(
    store: LocalStore, make_job: MakeJob, end_run: EndRun, tmp_path: Path
) -> None:
    job = make_job(prompt='a "fox",\nin snow; =1+1 狐', seed=2**53 + 1)
    end_run(store, job)
    end_run(store, make_job(), failed=True)

    collect_files(store, csv_file=tmp_path / "out" / "r.csv", json_file=tmp_path / "r.json")

    rows = {row["request.seed"]: row for row in table(tmp_path / "out" / "r.csv")}
    listed = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    row = rows[str(2**53 + 1)]
    assert row["request.prompt"] == job["prompt"]
    assert (row["status"], row["seconds.total"], row["seconds.queue_wait"]) == ("succeeded", "2.5", "")
    assert json.loads(row["seconds.denoise_steps"]) == [0.5, 0.25]
    assert (rows["7"]["error.code"], rows["7"]["error.retryable"]) == ("stalled", "true")
    assert {entry["request"]["seed"] for entry in listed} == {7, 2**53 + 1}
    assert [entry["run_id"] for entry in listed] == sorted(entry["run_id"] for entry in listed)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_a_text_that_a_spreadsheet_would_run_gets_an_apostrophe_and_numbers_stay(
    client: H3Client, node: "FakeNode", store: LocalStore, tmp_path: Path, start: str
) -> None:
    prompt = f"{start}HYPERLINK(0)"
    handle = client.submit_named([(prompt, {"prompt": prompt, "seed": 1, "checkpoint": "h3"})])
    node.run_all()
    (path,) = (store.root / f"runs/{handle.runs[0].run_id}/1/attempts/1").glob("benchmark.json")
    path.write_text(path.read_text().replace('"total":2.5', '"total":-2.5'))

    collect_files(store, csv_file=tmp_path / "r.csv", json_file=tmp_path / "r.json")

    assert (tmp_path / "r.csv").read_bytes().startswith(b"run_id,sweep,label,")
    (row,) = table(tmp_path / "r.csv")
    assert row["prompt"] == row["request.prompt"] == row["label"] == f"'{prompt}"
    assert (row["request.seed"], row["seconds.total"]) == ("1", "-2.5")
    (entry,) = json.loads((tmp_path / "r.json").read_text())
    assert entry["request"]["prompt"] == prompt


def test_one_file_cannot_be_both_table_and_list(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("r.csv")

    for csv_file, json_file in (("r.csv", "r.csv"), ("r.csv", "link"), ("./r.csv", "r.csv")):
        with pytest.raises(CollectTargetError, match="name two files"):
            collect_files(store, csv_file=tmp_path / csv_file, json_file=tmp_path / json_file)
    assert not (tmp_path / "r.csv").exists()


def test_equal_stores_give_equal_bytes(
    store: LocalStore, make_job: MakeJob, end_run: EndRun, tmp_path: Path
) -> None:
    for seed in range(5):
        end_run(store, make_job(seed=seed))

    for name in ("one", "two"):
        collect_files(store, csv_file=tmp_path / f"{name}.csv", json_file=tmp_path / f"{name}.json")

    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_an_empty_store_gives_a_header_and_an_empty_list(store: LocalStore, tmp_path: Path) -> None:
    found = collect_files(store, csv_file=tmp_path / "r.csv", json_file=tmp_path / "r.json")

    assert (found.num_records, found.problems) == (0, ())
    assert (tmp_path / "r.csv").read_text().count("\n") == 1
    assert json.loads((tmp_path / "r.json").read_text()) == []


def test_run_sweep_label_prompt_and_film_are_plain_columns(
    client: H3Client, node: "FakeNode", store: LocalStore, tmp_path: Path
) -> None:
    node.failing = {"a wave"}
    first = client.sweep(["a fox", "a wave"], [1], fields={"checkpoint": "h3"})
    client.submit({"prompt": "a stone", "seed": 1, "checkpoint": "h3"})
    node.run_all()

    collect_files(store, csv_file=tmp_path / "all.csv", json_file=None)
    found = collect_files(
        store, csv_file=tmp_path / "one.csv", json_file=tmp_path / "one.json", sweep_id=first.sweep_id
    )

    assert {row["prompt"] for row in table(tmp_path / "all.csv")} == {"a fox", "a wave", "a stone"}
    fox, wave = table(tmp_path / "one.csv")
    assert (fox["run_id"], fox["sweep"], fox["label"]) == (
        first.runs[0].run_id,
        first.sweep_id,
        "prompt 1: a fox, seed 1",
    )
    assert fox["film"] == f"runs/{fox['run_id']}/1/attempts/1/video.mp4"
    assert (wave["prompt"], wave["film"]) == ("a wave", "")
    assert (found.num_records, len(json.loads((tmp_path / "one.json").read_text()))) == (2, 2)
    with pytest.raises(UnknownRunError):
        collect_files(store, csv_file=tmp_path / "r.csv", json_file=None, sweep_id="sweep-none")
    assert not (tmp_path / "r.csv").exists()


def test_a_target_that_is_no_file_is_refused_and_stays(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(CollectTargetError, match="folder or a device"):
        collect_files(store, csv_file=tmp_path, json_file=None)
    (tmp_path / "file").write_text("")
    with pytest.raises(CollectTargetError, match="cannot write"):
        collect_files(store, csv_file=tmp_path / "file" / "r.csv", json_file=None)
    with pytest.raises(CollectTargetError, match="too long"):
        collect_files(store, csv_file=tmp_path / ("x" * 300), json_file=None)


def test_columns_are_those_of_the_schema_whatever_the_records_hold() -> None:
    bare = columns([record()])
    full = columns([record(environment=ENVIRONMENT, request={"seed": 1, "prompt": "x", "new_field": 2})])

    assert [name for name in full if name in bare] == bare
    assert [name for name in full if name not in bare] == [
        "request.prompt",
        "request.seed",
        "request.new_field",
        "environment.versions.python",
        "environment.versions.torch",
    ]
    assert len(set(full)) == len(full)
    assert set(flatten(record(environment=ENVIRONMENT))) - set(full) <= {
        "error",
        "checkpoint",
        "backends",
        "tokens",
        "prompt",
        "media",
    }


def test_a_record_of_a_newer_node_is_read_and_a_broken_one_says_why() -> None:
    data = json.loads(record().model_dump_json()) | {"from_the_future": {"x": 1}}

    assert parse_record(json.dumps(data).encode()) == record()
    with pytest.raises(RecordError, match="field 'run_id' is missing"):
        parse_record(json.dumps({k: v for k, v in data.items() if k != "run_id"}).encode())


ENVIRONMENT = {
    "node": "n",
    "device": "cpu",
    "platform": "linux",
    "python": "3.11",
    "versions": {"torch": "2.13", "python": "3.11"},
}
