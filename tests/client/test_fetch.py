"""Copying films and records: whole, checked, named for people, and only once."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client.client import H3Client
from client.errors import FetchTargetError
from client.fetch import fetch_runs
from queue_schemas.results import Manifest

if TYPE_CHECKING:
    from small_node import FakeNode

MakeJob = Callable[..., dict[str, Any]]
EndRun = Callable[..., Manifest]


def test_films_and_records_get_the_names_of_their_labels(
    client: H3Client, node: "FakeNode", tmp_path: Path
) -> None:
    handle = client.sweep(["a/red fox: été", "a wave"], [1], fields={"checkpoint": "h3"})
    node.run_all()

    fetched = fetch_runs(client.store, handle.runs, to=tmp_path / "films")

    fox, wave = (run.run_id[:12] for run in handle.runs)
    assert [path.name for path in fetched.files] == [
        f"prompt-1-a-red-fox-été-seed-1-{fox}.mp4",
        f"prompt-1-a-red-fox-été-seed-1-{fox}.json",
        f"prompt-2-a-wave-seed-1-{wave}.mp4",
        f"prompt-2-a-wave-seed-1-{wave}.json",
    ]
    assert fetched.problems == ()
    assert fetched.files[0].read_bytes() == b"film"
    assert sorted((tmp_path / "films").iterdir()) == sorted(fetched.files)


def test_a_long_label_of_any_script_is_cut_at_a_whole_character(
    client: H3Client, node: "FakeNode", make_job: MakeJob, tmp_path: Path
) -> None:
    handle = client.submit_named([("狐" * 200, make_job())])
    node.run_all()

    film, _ = fetch_runs(client.store, handle.runs, to=tmp_path).files

    assert film.name == f"{'狐' * 40}-{handle.runs[0].run_id[:12]}.mp4"


def test_again_nothing_is_copied_and_a_torn_copy_is_replaced(
    client: H3Client, node: "FakeNode", make_job: MakeJob, tmp_path: Path
) -> None:
    run = client.submit(make_job())
    node.run_all()
    film, record = fetch_runs(client.store, [run], to=tmp_path).files
    film.write_bytes(b"fil")
    before = record.stat().st_mtime_ns

    again = fetch_runs(client.store, [run], to=tmp_path)

    assert again.files == (film, record)
    assert film.read_bytes() == b"film"
    assert record.stat().st_mtime_ns == before


def test_what_is_missing_altered_or_not_ended_is_told(
    client: H3Client, node: "FakeNode", make_job: MakeJob, tmp_path: Path
) -> None:
    node.failing = {"a wave"}
    handle = client.sweep(["a fox", "a wave", "a stone", "a bird"], [1], fields={"checkpoint": "h3"})
    manifests = [node.end(node.begin() or {}) for _ in range(3)]
    store = node.store
    store.put_bytes(manifests[0].files["video"].name, b"another")
    (store.root / manifests[2].files["video"].name).unlink()

    fetched = fetch_runs(store, handle.runs, to=tmp_path)

    altered, failed, missing, waiting = fetched.problems
    assert "its content is not what its manifest says" in altered
    assert "failed: no step ended" in failed
    assert "it is missing" in missing
    assert "has not ended" in waiting
    assert {path.suffix for path in fetched.files} == {".json", ".txt"}  # no film, but the log
    assert not list(tmp_path.glob("*.mp4"))
    assert not list(tmp_path.glob(".*.part"))


def test_a_folder_that_is_a_file_is_refused(
    client: H3Client, node: "FakeNode", make_job: MakeJob, tmp_path: Path
) -> None:
    run = client.submit(make_job())
    node.run_all()
    (tmp_path / "file").write_text("")

    with pytest.raises(FetchTargetError, match="--to"):
        fetch_runs(client.store, [run], to=tmp_path / "file")
