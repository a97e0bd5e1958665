"""The `h3` command: exit codes, the one JSON line, sentences instead of tracebacks.

Most tests run it in this process, which spares the start of an interpreter; what only a process shows
(signals, a terminal, an undecodable argument) starts one.
"""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from h3_command import CLOSED, H3, SMALL, RunH3, environment, line, sentence

from client.session import Session
from client.settings import ClientSettings

if TYPE_CHECKING:
    from small_node import FakeNode


def test_an_unreachable_redis_is_named_with_a_remedy_and_code_3_and_nothing_is_written(
    h3: RunH3,
    tmp_path: Path,
) -> None:
    done = h3("submit", "a fox", *SMALL, "--redis", CLOSED)

    assert done.returncode == 3
    assert "no Redis answers at 127.0.0.1:1" in sentence(done)
    assert "h3-worker run --embedded" in sentence(done)
    assert "H3_REDIS_URL" in sentence(done)
    assert line(done)["error"]["code"] == "queue_unavailable"
    assert list(tmp_path.iterdir()) == []


def test_a_redis_password_is_never_shown(h3: RunH3) -> None:
    done = h3("submit", "a fox", *SMALL, "--redis", "redis://user:hunter2@127.0.0.1:1/0")

    assert done.returncode == 3
    assert "hunter2" not in done.stderr + done.stdout


def test_an_unknown_id_is_code_2_and_a_bad_environment_value_too(h3: RunH3, redis_url: str) -> None:
    unknown = h3("follow", "sweep-1", H3_REDIS_URL=redis_url)
    bad = h3("status", "x", H3_VAE_TILE_SIZE="big")
    strict = h3("status", "x", H3_REDIS_ULR="y", H3_STRICT_ENV="1")

    assert (unknown.returncode, bad.returncode, strict.returncode) == (2, 2, 2)
    assert "no run or sweep 'sweep-1'" in sentence(unknown)
    assert "H3_VAE_TILE_SIZE is 'big'" in sentence(bad)
    assert "did you mean 'H3_REDIS_URL'?" in sentence(strict)


def test_quiet_prints_nothing_but_errors(
    h3: RunH3, redis_url: str, storage: Path, working_node: "FakeNode"
) -> None:
    where = ["--redis", redis_url, "--storage", storage, "--quiet"]

    fine = h3("submit", "a fox", *SMALL, *where)
    faulty = h3("submit", "", *SMALL, *where)

    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "", "")
    assert (faulty.returncode, faulty.stdout) == (2, "")
    assert "the prompt is empty" in sentence(faulty)


def test_a_prompt_with_a_lone_surrogate_or_control_characters_is_shown_escaped(
    h3: RunH3, storage: Path
) -> None:
    done = subprocess.run(
        [*H3, "submit", b"a \xff fox"], capture_output=True, timeout=60, env=environment(), check=False
    )
    unknown = h3("status", "\x1b[31mred\n", "--redis", CLOSED)

    assert done.returncode == 2
    assert b"lone surrogate" in done.stderr
    assert "\x1b" not in unknown.stderr
    assert unknown.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        "",
        "submit",
        "sweep",
        "status",
        "follow",
        "fetch",
        "cancel",
        "collect",
        "nodes",
        "jobs",
        "doctor",
        "demo",
    ],
)
def test_every_help_ends_with_an_example_that_can_be_pasted(h3: RunH3, command: str) -> None:
    done = h3(*command.split(), "--help")

    last = done.stdout.strip().splitlines()[-1].strip()
    assert done.returncode == 0
    assert last.startswith(f"Example: h3 {command}")


def test_the_demo_tells_its_own_default_folder(h3: RunH3) -> None:
    said = h3("demo", "--help").stdout

    assert "[outputs/demo]" in said
    assert "s3://" not in said
    assert "H3_STORAGE_URL" not in said


def test_without_arguments_the_help_is_shown(h3: RunH3) -> None:
    assert "Usage: " in h3().stdout + h3().stderr


def test_the_version_is_told(h3: RunH3) -> None:
    done = h3("--version")

    assert done.stdout.startswith("h3 ")


def test_a_usage_error_is_a_line_for_programs_too(h3: RunH3) -> None:
    wrong, missing, command = h3("submit", "a", "--no-such"), h3("follow"), h3("sumbit", "a")

    for done in (wrong, missing, command):
        assert done.returncode == 2
        assert line(done)["error"]["code"] == "invalid_request"
    assert "--no-such" in line(wrong)["error"]["message"]
    assert h3("submit", "a", "--no-such", "--quiet").stdout == ""


def test_a_hint_shows_no_password() -> None:
    flags = {"redis": "redis://u:hunter2@host:1/0", "storage": "a b"}
    session = Session(settings=ClientSettings(), flags=flags)

    assert session.hint("follow x") == "h3 follow x --redis 'redis://u:***@host:1/0' --storage 'a b'"


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "client.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("h3 ")
