"""A store that is another one in everything that a subclass does not change."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from queue_schemas.benchmark import OutputFile
from storage.base import ArtifactStore


class WrappedStore:
    """Hands every verb on to the store inside."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    def put_bytes(self, key: str, data: bytes) -> OutputFile:
        return self._store.put_bytes(key, data)

    def put_file(self, key: str, source: Path) -> OutputFile:
        return self._store.put_file(key, source)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._store.put_if_absent(key, data)

    def conditional_writes(self) -> bool:
        return self._store.conditional_writes()

    def read_bytes(self, key: str, *, limit_bytes: int) -> bytes | None:
        return self._store.read_bytes(key, limit_bytes=limit_bytes)

    def open(self, key: str) -> BinaryIO:
        return self._store.open(key)

    def list(self, prefix: str) -> Iterator[str]:
        return self._store.list(prefix)

    def names(self, prefix: str) -> Iterator[str]:
        return self._store.names(prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        return self._store.folders(prefix)

    def locate(self, key: str) -> str:
        return self._store.locate(key)

    def remove_abandoned(self, *, older_than_seconds: float) -> int:
        return self._store.remove_abandoned(older_than_seconds=older_than_seconds)
