"""`h3 collect`, `fetch`, `cancel`, `status`, `nodes`, `jobs` and `doctor`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h3_command import CLOSED, SMALL, RunH3, line, on_terminal, sentence

from queue_schemas.results import Manifest

if TYPE_CHECKING:
    from small_node import FakeNode


def test_collect_writes_both_files_without_a_redis(
    h3: RunH3, storage: Path, node: "FakeNode", make_job: Callable[..., Any], end_run: Callable[..., Manifest]
) -> None:
    end_run(node.store, make_job())
    node.store.put_bytes("runs/torn/1/manifest.json", b"{")

    done = h3("collect", "--csv", "r.csv", "--json", "r.json", "--storage", storage, H3_REDIS_URL=CLOSED)

    said = line(done)
    assert (done.returncode, said["records"], said["csv"], said["json"]) == (0, 1, "r.csv", "r.json")
    assert "runs/torn/1/manifest.json" in said["problems"][0]
    assert "note: left out: runs/torn/1/manifest.json" in done.stderr
    assert (
        Path("r.csv").read_text().splitlines()[0].startswith("run_id,sweep,label,prompt,film,schema_version,")
    )
    assert len(json.loads(Path("r.json").read_text())) == 1
    both = h3("collect", "--csv", "r.csv", "--json", "./r.csv", "--storage", storage)
    assert both.returncode == 2
    assert "name two files" in sentence(both)


def test_a_table_on_standard_output_stands_alone(
    h3: RunH3, storage: Path, node: "FakeNode", make_job: Callable[..., Any], end_run: Callable[..., Manifest]
) -> None:
    end_run(node.store, make_job())

    done = h3("collect", "--csv", "-", "--storage", storage)

    header, row = done.stdout.splitlines()
    assert header.startswith("run_id,sweep,label,prompt,film,")
    assert len(row.split(",")) > 20


def test_films_are_fetched_and_runs_cancelled_by_the_start_of_their_ids(
    h3: RunH3, redis_url: str, storage: Path, node: "FakeNode"
) -> None:
    where = ["--redis", redis_url, "--storage", storage]
    run = line(h3("submit", "a fox", *SMALL, "--seed", "7", "--no-follow", *where))["run_id"]

    early = h3("fetch", run[:8], "--to", "films", *where)
    node.run_all()
    done = h3("fetch", run[:8], "--to", "films", *where)
    other = line(h3("submit", "a wave", *SMALL, "--no-follow", *where))["run_id"]
    cancelled = h3("cancel", other[:8], *where)
    state = h3("status", other[:8], run[:8], *where)

    assert (early.returncode, done.returncode, cancelled.returncode, state.returncode) == (1, 0, 0, 1)
    assert "has not ended" in early.stderr
    (video,) = line(done)["videos"]
    assert Path(video).read_bytes() == b"film"
    assert line(cancelled)["removed"] == 1
    assert [entry["status"] for entry in line(state)["runs"]] == ["cancelled", "succeeded"]


def test_a_failed_run_tells_where_its_log_lies(
    h3: RunH3, redis_url: str, storage: Path, node: "FakeNode"
) -> None:
    where = ["--redis", redis_url, "--storage", storage]
    node.failing = {"a fox"}
    run = line(h3("submit", "a fox", *SMALL, "--no-follow", *where))["run_id"]
    node.run_all()

    _, shown = on_terminal("status", run, *where, columns=80)
    (told,) = line(h3("status", run, *where))["runs"]

    assert told["log"] == f"{storage}/runs/{run}/1/attempts/1/log.txt"
    assert f"    its log: {told['log']}" in shown.splitlines()


def test_nodes_and_jobs_are_listed(
    h3: RunH3, redis_url: str, storage: Path, node: "FakeNode", make_job: Callable[..., Any]
) -> None:
    where = ["--redis", redis_url, "--storage", storage]
    none = h3("nodes", *where)
    node.announce("h3-tiny")
    h3("submit", "a fox", *SMALL, "--priority", "high", "--no-follow", *where)
    h3("submit", "a wave", *SMALL, "--no-follow", *where)
    node.begin()

    nodes, jobs = line(h3("nodes", *where)), line(h3("jobs", *where))

    assert (none.returncode, line(none)) == (1, {"nodes": []})
    assert nodes["nodes"][0]["checkpoint"] == "h3-tiny"
    assert (jobs["queued"], jobs["running"], jobs["dead"]) == (1, 1, 0)
    assert [queue["priority"] for queue in jobs["queues"]] == ["high", "normal"]


def test_doctor_tells_faults_with_code_1(h3: RunH3, redis_url: str, storage: Path) -> None:
    done = h3("doctor", "--redis", redis_url, "--storage", storage)

    said = line(done)
    assert done.returncode == 1
    faults = {finding["subject"]: finding for finding in said["findings"] if not finding["ok"]}
    assert set(faults) == {"redis durability", "storage", "nodes"}
    assert all(finding["remedy"] for finding in faults.values())
    assert said["faults"] == 3
