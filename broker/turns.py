"""Turns of those who create one artifact in a store that does not decide by itself: a lock of the fleet."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final

import redis

from broker import keys

log = logging.getLogger(__name__)

LOCK_SECONDS: Final = 60.0
WAIT_SECONDS: Final = 30.0


def turns(
    connection: redis.Redis, *, fleet: str, wait_seconds: float = WAIT_SECONDS
) -> Callable[[str], AbstractContextManager[bool]]:
    """Return what gives the turn of one artifact; False inside the block when nobody gave it up in time.

    Raises redis-py's errors without Redis.
    """
    return partial(_turn, connection, fleet=fleet, wait_seconds=wait_seconds)


@contextmanager
def _turn(connection: redis.Redis, artifact: str, *, fleet: str, wait_seconds: float) -> Iterator[bool]:
    lock = connection.lock(
        keys.turn_key(fleet, artifact), timeout=LOCK_SECONDS, blocking_timeout=wait_seconds
    )
    if not lock.acquire():
        yield False
        return
    try:
        yield True
    finally:
        try:
            lock.release()
        except redis.exceptions.RedisError as error:  # the write is done; a lock that is left runs out
            log.warning("the turn for %s was not given back: %s", artifact, error)
