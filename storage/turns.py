"""A store whose conditional write cannot be trusted, made usable by taking turns: one lock per key.

What that does not give: a writer that is frozen between its look and its write, for longer than the lock
lives, can still overwrite. Leases make that unlikely; only a store that decides by itself rules it out.
Knows no queue: whoever opens the store brings the lock.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from storage.base import ArtifactStore
from storage.errors import StorageUnavailableError
from storage.wrapped import WrappedStore

Turn = Callable[[str], AbstractContextManager[bool]]
"""The lock of one key, shared by all who write it; False inside the block when it could not be had."""


class TurnTakingStore(WrappedStore):
    """Another store, whose `put_if_absent` looks and writes under a lock."""

    def __init__(self, store: ArtifactStore, turn: Turn) -> None:
        super().__init__(store)
        self._turn = turn

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """As the protocol says, among those who take turns; raises what the lock raises, too."""
        with self._turn(key) as is_mine:
            if not is_mine:
                raise StorageUnavailableError(f"cannot create {key!r}: another writer keeps its turn")
            if self._store.read_bytes(key, limit_bytes=len(data) + _ANY_BYTES) is not None:
                return False
            return self._store.put_if_absent(key, data)

    def conditional_writes(self) -> bool:
        return False


_ANY_BYTES: Final = 16 * 1024 * 1024
"""Room for whatever lies under a key already: it is read to learn that it is there."""
