"""The `h3` command as the tests run it: in this process, or in one of its own before a terminal."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

H3 = [sys.executable, "-c", "from client.cli import main; main()"]
CLOSED = "redis://127.0.0.1:1/0"
SMALL = ["--width", "64", "--height", "64", "--frames", "5", "--steps", "2", "--checkpoint", "h3-tiny"]


def environment(**names: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
    return kept | names


@dataclass
class Done:
    """What one command line said and how it ended."""

    returncode: int
    stdout: str
    stderr: str


RunH3 = Callable[..., Done]


def line(done: Done) -> dict[str, Any]:
    """The one line of standard output."""
    assert done.stdout.count("\n") == 1, done.stdout
    value: dict[str, Any] = json.loads(done.stdout)
    assert done.stdout == json.dumps(value, separators=(",", ":")) + "\n"
    return value


def sentence(done: Done) -> str:
    """The one line of standard error of a command that failed."""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


def on_terminal(*arguments: str | Path, columns: int = 200, **names: str) -> tuple[int, str]:
    """Run the command with a terminal as standard output; return the exit code and what it showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*H3, *map(str, arguments)],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=environment(COLUMNS=str(columns), TERM="xterm", **names),
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65_536):
            shown += chunk
    except OSError:  # the terminal's other end is closed
        pass
    os.close(ours)
    return process.wait(timeout=30), shown.decode()
