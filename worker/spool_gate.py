"""No claim while this node's spool is full and its store takes nothing.

A film can be made then and not stored, and the disk is not endless. As soon as the store can be written
claims go on, also with a full spool: they are what empties it.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from storage.errors import StorageError
from worker.spool import Spool

log = logging.getLogger(__name__)

PROBE_SECONDS: Final = 30.0


class SpoolGate:
    """Asked before every claim; `probe` writes to the store, or raises its error."""

    def __init__(
        self, spool: Spool, probe: Callable[[], object], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._spool, self._probe, self._clock = spool, probe, clock
        self._is_writable, self._next_probe = True, float("-inf")

    def is_open(self) -> bool:
        if not self._spool.is_full():
            return True
        now = self._clock()
        if now >= self._next_probe:
            self._next_probe = now + PROBE_SECONDS
            try:
                self._probe()
                self._is_writable = True
            except StorageError as error:
                log.warning("the spool is full, and nothing is claimed until the store is back: %s", error)
                self._is_writable = False
        return self._is_writable
