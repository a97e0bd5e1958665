"""Ending a job process's work from outside: a watch on the entry's cancel flag, while the work blocks.

The work waits in one read of the engine's stream for as long as a step takes, so a thread looks at the flag
and interrupts the main thread with a signal. Leaving the stream is what makes the engine stop, at its next
step. Knows no HTTP and no storage.
"""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import redis

from broker.cancel import is_cancelled
from worker.errors import RunCancelledError

log = logging.getLogger(__name__)

_SIGNAL: Final = signal.SIGUSR1


class CancelWatch:
    """Watches one entry's flag from a thread; made and used in the main thread of a job process."""

    def __init__(self, connection: redis.Redis, entry: str, *, fleet: str, every_seconds: float) -> None:
        self._connection, self._entry, self._fleet = connection, entry, fleet
        self._every = every_seconds
        self._done = threading.Event()
        self._seen = self._interruptible = False
        self._thread = threading.Thread(target=self._watch, name="cancel", daemon=True)
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(_SIGNAL, self._interrupt)
        self._seen = self._asked()  # here, so that a short job's thread needs no connection of its own
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        signal.signal(_SIGNAL, self._before)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let a request to cancel break off what the block does. Raises RunCancelledError."""
        self._interruptible = True  # before the check: a signal in between must not get lost
        try:
            if self._seen:
                raise RunCancelledError
            yield
        finally:
            self._interruptible = False

    def _interrupt(self, *_: object) -> None:
        if self._interruptible:
            self._interruptible = False  # once: the block's own clean-up is not broken off
            raise RunCancelledError

    def _watch(self) -> None:
        while not self._done.wait(self._every):
            if self._asked():
                self._seen = True
                os.kill(os.getpid(), _SIGNAL)
                return

    def _asked(self) -> bool:
        try:
            asked = is_cancelled(self._connection, self._entry, fleet=self._fleet)
        except redis.exceptions.RedisError as error:
            log.debug("job %s: cancel flag not read: %s", self._entry, type(error).__name__)
            return False
        if asked:
            log.info("job %s: asked to stop", self._entry)
        return asked
