"""A store whose conditional write cannot be trusted, made usable by taking turns: one lock in Redis per key.

What that does not give: a writer that is frozen between its look and its write, for longer than the lock
lives, can still overwrite. Leases make that unlikely; only a store that decides by itself rules it out.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import redis

from broker import keys
from queue_schemas.benchmark import OutputFile
from storage.base import ArtifactStore
from storage.uri import open_store

log = logging.getLogger(__name__)

LOCK_SECONDS: Final = 60.0
WAIT_SECONDS: Final = 30.0


class TurnTakingStore:
    """Another store, whose `put_if_absent` looks and writes under a lock of the fleet."""

    def __init__(self, store: ArtifactStore, connection: redis.Redis, *, fleet: str) -> None:
        self._store, self._connection, self._fleet = store, connection, fleet

    @property
    def url(self) -> str:
        return self._store.url

    def put_bytes(self, key: str, data: bytes) -> OutputFile:
        return self._store.put_bytes(key, data)

    def put_file(self, key: str, source: Path) -> OutputFile:
        return self._store.put_file(key, source)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """As the protocol says, among those who take turns. Raises redis-py's errors without Redis."""
        name = keys.turn_key(self._fleet, key)
        with self._connection.lock(name, timeout=LOCK_SECONDS, blocking_timeout=WAIT_SECONDS):
            if self._store.read_bytes(key, limit_bytes=len(data) + _ANY_BYTES) is not None:
                return False
            return self._store.put_if_absent(key, data)

    def conditional_writes(self) -> bool:
        return False

    def read_bytes(self, key: str, *, limit_bytes: int) -> bytes | None:
        return self._store.read_bytes(key, limit_bytes=limit_bytes)

    def open(self, key: str) -> BinaryIO:
        return self._store.open(key)

    def list(self, prefix: str) -> Iterator[str]:
        return self._store.list(prefix)

    def locate(self, key: str) -> str:
        return self._store.locate(key)

    def remove_abandoned(self, *, older_than_seconds: float) -> int:
        return self._store.remove_abandoned(older_than_seconds=older_than_seconds)


_ANY_BYTES: Final = 16 * 1024 * 1024
"""Room for whatever lies under a key already: it is read to learn that it is there."""


def decides_by_itself(url: str) -> bool:
    """Try once, at the start of a process, whether the store's conditional write can be trusted."""
    store = open_store(url)
    if store.conditional_writes():
        return True
    log.warning("%s does not refuse a second write: manifests are written by turns, under a lock", store.url)
    return False


def open_fleet_store(url: str, connection: redis.Redis, *, fleet: str, takes_turns: bool) -> ArtifactStore:
    """Return the store at `url`, by turns where it cannot decide by itself."""
    store = open_store(url)
    return TurnTakingStore(store, connection, fleet=fleet) if takes_turns else store
