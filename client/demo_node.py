"""The node that `h3 demo` starts for itself: one supervisor process, which dies with the demo.

The client must not import the worker, so it names programs and modules by strings. The node's words for
people go to node.log; its one JSON line says where its queue is.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from client.errors import DemoError
from client.settings import environment_without_settings
from queue_schemas.programs import module_command

START_SECONDS = 120.0
STOP_SECONDS = 30.0
"""A node that has not ended so long after being asked is killed; its children are tied to it."""
_LOG_TAIL_LINES = 5
_THREADS = {"OMP_NUM_THREADS": "1"}
"""h3-tiny's tensors are too small to share out. The environment wins where it names the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoNode:
    """A node that has said that it is ready."""

    process: "subprocess.Popen[bytes]"
    log: Path
    redis_url: str
    checkpoint: str

    def check_alive(self) -> None:
        """Raise DemoError, with the end of its log, if the node has ended."""
        _check_alive(self.process, self.log)


def node_command(folder: Path, scratch: Path) -> list[str]:
    """Return the command line of a CPU node that stores below `folder` and works in `scratch`."""
    worker = Path(sys.executable).with_name("h3-worker")
    if not worker.exists():
        remedy = "install the extras worker and embedded, or run make setup"
        raise DemoError(f"the demo needs a node, but {worker} is not installed; {remedy}")
    # worker.lifeline: the supervisor is killed by the kernel should the demo be killed itself.
    tied = module_command("worker.lifeline", str(os.getpid()))
    run = [str(worker), "run", "--embedded", "--storage", str(folder), "--port", "0"]
    return [*tied, *run, "--redis-port", "0", "--output-dir", str(scratch), "--drain-seconds", "1"]


@contextmanager
def started_node(command: Sequence[str], *, log: Path, pause: Callable[[float], None]) -> Iterator[DemoNode]:
    """Yield a ready node; it has ended when the block is left, however that happens.

    `pause` waits, and raises when the demo is to stop. Raises DemoError when the node does not start.
    """
    with tempfile.TemporaryFile() as said, _created(log) as log_file:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=log_file,
            env=_THREADS | environment_without_settings(),
            start_new_session=True,  # Ctrl-C reaches the demo only, which then ends the node in order
        )
        try:
            yield _wait_until_ready(process, said, log=log, pause=pause)
        finally:
            _stop(process)


def _created(log: Path) -> IO[bytes]:
    """Open a new file; what had the name goes, and a link is not followed. Raises DemoError."""
    try:
        log.unlink(missing_ok=True)
        return log.open("xb")
    except OSError as error:
        raise DemoError(f"cannot write {log} ({error.strerror}); move it away") from error


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", said: IO[bytes], *, log: Path, pause: Callable[[float], None]
) -> DemoNode:
    deadline = time.monotonic() + START_SECONDS
    while (ready := _ready_line(said)) is None:
        _check_alive(process, log)
        if time.monotonic() > deadline:
            raise DemoError(f"the node was not ready after {START_SECONDS:.0f} s; look into {log}")
        pause(0.1)
    return DemoNode(process=process, log=log, redis_url=ready["redis_url"], checkpoint=ready["checkpoint"])


def _ready_line(said: IO[bytes]) -> dict[str, str] | None:
    # pread: the child writes at this file's shared position, which reading must not move.
    for line in os.pread(said.fileno(), 1 << 20, 0).splitlines(keepends=True):
        if line.startswith(b"{") and line.endswith(b"\n"):
            event: dict[str, str] = json.loads(line)
            if event.get("event") == "ready":
                return event
    return None


def _check_alive(process: "subprocess.Popen[bytes]", log: Path) -> None:
    if process.poll() is None:
        return
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
    words = f": {' / '.join(tail)}" if tail else ""
    raise DemoError(f"the node ended with code {process.returncode}; look into {log}{words}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
