"""A store whose identity is known: whatever else lies under its address is taken for a store that is away.

An unmounted file system leaves an empty folder behind, a moved one nothing. A film that is written there is
lost to everybody else, so `store.json` is read before every write, and before a name is said to be missing.
"""

from pathlib import Path
from typing import BinaryIO

from queue_schemas.benchmark import OutputFile
from storage.base import ArtifactStore
from storage.errors import ArtifactMissingError, StorageUnavailableError, StoreIdentityError
from storage.identity import read_identity
from storage.local import LocalStore
from storage.wrapped import WrappedStore


class KnownStore(WrappedStore):
    """The store with this id; every verb that would miss it raises StorageUnavailableError."""

    def __init__(self, store: ArtifactStore, identity: str) -> None:
        super().__init__(store.existing() if isinstance(store, LocalStore) else store)
        self._identity = identity

    def check(self) -> None:
        """See that the store is there. Raises StorageUnavailableError."""
        try:
            found = read_identity(self._store)
        except StoreIdentityError as error:
            raise StorageUnavailableError(str(error)) from None
        if found != self._identity:
            raise StorageUnavailableError(missing_store(self.url, found=found, wanted=self._identity))

    def put_bytes(self, key: str, data: bytes) -> OutputFile:
        self.check()
        return super().put_bytes(key, data)

    def put_file(self, key: str, source: Path) -> OutputFile:
        self.check()
        return super().put_file(key, source)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.check()
        return super().put_if_absent(key, data)

    def conditional_writes(self) -> bool:
        self.check()
        return super().conditional_writes()

    def read_bytes(self, key: str, *, limit_bytes: int) -> bytes | None:
        found = super().read_bytes(key, limit_bytes=limit_bytes)
        if found is None:
            self.check()
        return found

    def open(self, key: str) -> BinaryIO:
        try:
            return super().open(key)
        except ArtifactMissingError:
            self.check()
            raise


def missing_store(url: str, *, found: str | None, wanted: str) -> str:
    """Say what lies at `url` instead of the store `wanted`, and what to do."""
    if found is None:
        gone = f"{url} has no store.json, so the store {wanted[:8]} is not there"
        return f"{gone}: mount it again or bring it back"
    return f"{url} is the store {found[:8]}, not {wanted[:8]}: mount that one again or bring it back"
