"""The third level: a store that other nodes read too. It may be slow or away, and no job waits for that.

A question has two seconds. One that fails silences the level for a minute, so that a store that is away
costs a job two seconds now and then. Knows no storage: whoever serves the model binds a `SharedStore`.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 60.0
ENTRY_BYTES: Final = 256 * 1024 * 1024
"""Of the largest entry that is shared; more is hardly fetched in time."""


class SharedStoreError(Exception):
    """Raised by a `SharedStore` that is away, or does not take what it is given."""


class SharedStore(Protocol):
    """Bytes under keys, from any thread."""

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        """Return an entry, at most one byte more than the limit; None where there is none."""

    def put(self, key: str, data: bytes) -> None:
        """Keep an entry, whole or not at all, in place of any that is there."""


class SharedLevel:
    """Reads with a time-out; writes are slow, so they belong into the background."""

    name = "store"

    def __init__(self, store: SharedStore, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._store, self._answer_seconds = store, answer_seconds
        self._silent_until = 0.0

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        """Return the entry; None also where the store does not answer in time."""
        if time.monotonic() < self._silent_until or limit_bytes > ENTRY_BYTES:
            return None
        try:
            return _within(
                lambda: self._store.get(key, limit_bytes=limit_bytes), seconds=self._answer_seconds
            )
        except SharedStoreError as error:
            self._pause(error)
            return None

    def put(self, key: str, data: bytes) -> None:
        if time.monotonic() < self._silent_until or len(data) > ENTRY_BYTES:
            return
        try:
            self._store.put(key, data)
        except SharedStoreError as error:
            self._pause(error)

    def drop(self, key: str) -> None:
        """Leave it: the entry that is computed now replaces it."""

    def _pause(self, error: SharedStoreError) -> None:
        self._silent_until = time.monotonic() + PAUSE_SECONDS
        log.warning("conditioning cache: nothing is shared for %.0f s: %s", PAUSE_SECONDS, error)


def _within(act: Callable[[], bytes | None], *, seconds: float) -> bytes | None:
    """Return what `act` returns, in a thread that is left alone, by exiting too, when it takes longer."""
    answers: queue.SimpleQueue[bytes | SharedStoreError | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(act())
        except SharedStoreError as error:
            answers.put(error)

    threading.Thread(target=run, name="conditioning-get", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise SharedStoreError(f"the store did not answer within {seconds:g} s") from None
    if isinstance(answer, SharedStoreError):
        raise answer
    return answer
