"""Wait for a Redis that is away: repeat an act until it succeeds or the time is over."""

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

import redis

log = logging.getLogger(__name__)

AWAY: Final = (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)
"""What is raised while the server does not answer, loads its data or refuses (`refusals.py`)."""
_FIRST_SECONDS: Final = 0.2
_LAST_SECONDS: Final = 3.0

Answer = TypeVar("Answer")


def patiently(act: Callable[[], Answer], *, seconds: float, what: str) -> Answer:
    """Return what `act` returns; while Redis is away try again, for `seconds`, then raise its error."""
    deadline, pause = time.monotonic() + seconds, _FIRST_SECONDS
    while True:
        try:
            return act()
        except AWAY as error:
            if time.monotonic() + pause > deadline:
                raise
            log.warning("%s: waiting for Redis: %s", what, error)
        time.sleep(pause)
        pause = min(2 * pause, _LAST_SECONDS)
