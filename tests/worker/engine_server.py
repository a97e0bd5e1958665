"""An engine behind real HTTP, in a thread of the test."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from worker.doors import Doors
from worker.service import EngineSlot, make_app


def wait_until(condition: Callable[[], Any], *, what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.01)


@contextmanager
def served(slot: EngineSlot, doors: Doors) -> Iterator[str]:
    """Serve over real HTTP on a free port of 127.0.0.1, in a thread."""
    app = make_app(slot, doors=doors)
    config = uvicorn.Config(app, port=0, log_config=None, access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, what="the service listens")
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
