"""`h3` before a person: at a terminal, and interrupted."""

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from h3_command import H3, SMALL, RunH3, environment, line, on_terminal

from broker import keys
from broker.letters import DeadLetter
from client.client import H3Client

if TYPE_CHECKING:
    from small_node import FakeNode

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_the_job_alone_and_says_how_to_see_it_again(
    redis_url: str, storage: Path, node: "FakeNode", number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [*H3, "submit", "a fox", *SMALL, "--redis", redis_url, "--storage", str(storage)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stderr is not None
    notes = [process.stderr.readline(), process.stderr.readline()]  # following begins right after them

    process.send_signal(number)
    out, err = process.communicate(timeout=30)

    assert "no live node" in "".join(notes)
    assert process.returncode == 130
    assert (out, "Traceback" in err) == ("", False)
    assert "interrupted; the jobs go on. See them again with: h3 follow sweep-" in err
    assert len(node.queued()) == 1


def test_a_person_at_a_terminal_sees_bars_and_a_table_and_no_json(
    redis_url: str, storage: Path, tmp_path: Path, working_node: "FakeNode"
) -> None:
    (tmp_path / "p.txt").write_text("a [red]fox[/red]\na wave\n")
    working_node.failing = {"a wave"}
    where = ["--redis", redis_url, "--storage", storage]

    code, shown = on_terminal("sweep", "--prompts", "p.txt", "--seeds", "5,", *SMALL, *where)
    json_code, json_shown = on_terminal(
        "sweep", "--prompts", "p.txt", "--seeds", "5,", *SMALL, *where, "--json"
    )

    assert code == json_code == 1
    assert "all runs" in shown
    assert "2/2, 1 failed" in shown
    assert "video.mp4" in shown
    assert "no step ended" in shown
    assert '{"' not in shown
    assert json.loads(json_shown)["failed"] == 1


def test_a_sweep_says_what_it_queued_and_hints_repeat_the_addresses(
    h3: RunH3, redis_url: str, storage: Path, tmp_path: Path
) -> None:
    (tmp_path / "p.txt").write_text("a fox\n")
    where = ["--redis", redis_url, "--storage", storage, "--fleet", "h3"]

    drawn = h3("sweep", "--prompts", "p.txt", "--seeds", "51", *SMALL, *where, "--no-follow")
    single = h3("sweep", "--prompts", "p.txt", "--seeds", "51,", *SMALL, *where, "--no-follow")
    code, shown = on_terminal("submit", "a fox", *SMALL, *where, "--no-follow")

    assert "note: 51 runs: 1 prompt x 51 drawn seeds" in drawn.stderr
    assert "note: 1 run: 1 prompt x 1 seed" in single.stderr
    assert line(single)["runs"][0]["seed"] == 51
    assert code == 0
    assert f"--redis {redis_url} --storage {storage} --fleet h3" in shown
    assert re.search(r"1 queued, seed \d+; follow with: h3 follow sweep-", shown)


def test_names_messages_and_labels_of_others_cannot_steer_the_terminal(
    redis_url: str, storage: Path, client: H3Client, node: "FakeNode", make_job: Callable[..., Any]
) -> None:
    evil = "\x1b]0;title\x07\x1b[2J"
    where = ["--redis", redis_url, "--storage", storage]
    node.announce("h3-tiny", node=f"n{evil}", device=f"d{evil}", storage_url=f"file:///{evil}")
    handle = client.submit_named([(f"label{evil}", make_job())])
    letter = DeadLetter(entry="a-1", attempt=3, reason=f"lost {evil}", log=f"log {evil}")
    node.connection.rpush(keys.dead_key("h3"), letter.dumps())

    said = [
        on_terminal(*command, *where)[1]
        for command in (["nodes"], ["jobs"], ["status", handle.sweep_id], ["doctor"])
    ]

    for text in said:
        assert not any(part in text for part in ("\x1b]", "\x1b[2J", "\x07"))
        assert r"\x1b]0;title" in text


def test_ids_and_paths_are_whole_on_a_terminal_of_80_columns(
    h3: RunH3, redis_url: str, storage: Path, node: "FakeNode"
) -> None:
    where = ["--redis", redis_url, "--storage", storage]
    run = line(h3("submit", "a fox " * 40, *SMALL, "--seed", "7", "--no-follow", *where))["run_id"]
    node.run_all()
    letter = DeadLetter(entry=f"{run}-1", attempt=3, reason="engine_lost: gone", log="one\nlast words")
    node.connection.rpush(keys.dead_key("h3"), letter.dumps())

    _, status = on_terminal("status", run, *where, columns=80)
    _, followed = on_terminal("follow", run, *where, columns=80)
    _, jobs = on_terminal("jobs", *where, columns=80)
    _, doctor = on_terminal("doctor", *where, columns=80)

    assert run in status
    assert f"{storage}/runs/{run}/1/attempts/1/video.mp4" in followed.splitlines()
    assert "0 waiting, 0 running" in jobs
    assert f"dead after attempt 3: {run}-1: engine_lost: gone" in jobs
    assert "    last words" in jobs
    (told,) = line(h3("jobs", *where))["dead_letters"]
    assert (told["attempt"], told["log"]) == (3, "one\nlast words")
    assert "FAULT nodes: no live node" in doctor
    assert "\n      start one: h3-worker run" in doctor.replace("\r", "")
