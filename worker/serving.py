"""The engine's process: listen at once, load in a thread, serve until a signal, unload, exit.

`GET /ready` answers from the first second, with what the loader is doing, so a supervisor sees progress
instead of silence. When loading fails the process ends with the loader's error.
"""

import asyncio
import errno
import logging
import math
import signal
import socket
import threading
from typing import Final

import uvicorn

from worker.doors import Doors
from worker.errors import SettingsError, WorkerError
from worker.service import EngineSlot, Loader, make_app

log = logging.getLogger(__name__)

GRACE_SECONDS: Final = 10.0
"""How long open requests may still run after a signal; those left are then answered with an error."""
_ANSWER_SECONDS: Final = 2


class PortTakenError(WorkerError):
    """Raised when the address that the engine should listen on cannot be had."""


class LoadBrokenError(WorkerError):
    """Raised when loading ended in no ordinary exception: a panic of a library, or an exit."""


class _Server(uvicorn.Server):
    """Answers every open request before uvicorn gives its connection up."""

    def __init__(self, config: uvicorn.Config, slot: EngineSlot, *, grace_seconds: float) -> None:
        super().__init__(config)
        self._slot, self._grace_seconds = slot, grace_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().call_later(self._grace_seconds, self._slot.interrupt)
        await super().shutdown(sockets=sockets)


def serve(
    load: Loader, *, host: str, port: int, api_token: str | None, grace_seconds: float = GRACE_SECONDS
) -> None:
    """Serve until SIGTERM or SIGINT, and `grace_seconds` longer for open requests.

    Raises SettingsError, PortTakenError, and whatever `load` raised.
    """
    if not host:
        raise SettingsError("--host is empty; name an address of this machine, such as 127.0.0.1")
    doors = Doors(host=host, api_token=api_token)
    if not doors.on_loopback and not api_token:
        raise SettingsError(
            f"an engine on {host} is open to the network: set H3_API_TOKEN, or listen on 127.0.0.1"
        )
    listener = _listen(host, port)
    log.info("listening on http://%s:%d", host, listener.getsockname()[1])
    slot = EngineSlot()
    config = uvicorn.Config(
        make_app(slot, doors=doors),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(grace_seconds) + _ANSWER_SECONDS,
    )
    server = _Server(config, slot, grace_seconds=grace_seconds)
    failures: list[Exception] = []
    threading.Thread(target=_load, args=(load, slot, server, failures), name="load", daemon=True).start()
    # uvicorn raises the signal again once it has stopped; that must not end the process before the engine.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server.run(sockets=[listener])
    if slot.engine is not None:
        slot.engine.close()
    if failures:
        raise failures[0]


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Inherited by every connection. asyncio would set it only on a socket that was made for TCP by number,
    # and without it each answer after the first waits 40 ms for the caller's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except (OSError, UnicodeError) as error:
        listener.close()
        if isinstance(error, socket.gaierror | UnicodeError) or error.errno == errno.EADDRNOTAVAIL:
            raise SettingsError(
                f"--host {host!r} is no address of this machine; name one that is, such as 127.0.0.1"
            ) from None
        taken = "stop what listens there, or " if error.errno == errno.EADDRINUSE else ""
        raise PortTakenError(
            f"cannot listen on {host}:{port} ({error.strerror}); {taken}set H3_PORT / --port"
        ) from None
    return listener


def _load(load: Loader, slot: EngineSlot, server: uvicorn.Server, failures: list[Exception]) -> None:
    def tell(message: str) -> None:
        log.info("%s", message)
        slot.message = message

    try:
        slot.engine = load(tell)
        log.info("ready")
    except Exception as error:  # told by the main thread, which ends the process with it
        failures.append(error)
    except BaseException as error:  # without this the process would wait for ever for a loader that is gone
        log.error("loading broke", exc_info=error)
        failures.append(LoadBrokenError(f"loading ended with {type(error).__name__}: {error}"))
    if failures:
        server.should_exit = True
