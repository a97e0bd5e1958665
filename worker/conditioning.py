"""Where the engine keeps text features: the settings' bounds and folder, and the store if it is shared."""

from model.conditioning.cache import ConditioningOptions
from model.conditioning.shared import SharedStoreError
from storage.base import ArtifactStore
from storage.errors import ArtifactTooLargeError, StorageError
from storage.identity import read_identity
from storage.layout import conditioning_key
from storage.uri import open_store
from worker.own_names import CONDITIONING
from worker.settings import Settings


def conditioning_options(settings: Settings) -> ConditioningOptions:
    """Return what the settings say; nothing is made or reached yet."""
    store = StoredConditioning(open_store(settings.storage_url)) if settings.conditioning_shared else None
    return ConditioningOptions(
        memory_bytes=int(settings.conditioning_memory_gb * 1e9),
        folder=settings.conditioning_dir or settings.output_dir / CONDITIONING,
        folder_bytes=int(settings.conditioning_disk_gb * 1e9),
        shared=store,
    )


class StoredConditioning:
    """A fleet's store as the cache's `SharedStore`."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        """As the protocol says; what is too long is no entry, and told as an empty one."""
        try:
            return self._store.read_bytes(conditioning_key(key), limit_bytes=limit_bytes)
        except ArtifactTooLargeError:
            return b""
        except StorageError as error:
            raise SharedStoreError(str(error)) from None

    def put(self, key: str, data: bytes) -> None:
        """As the protocol says; a store that no fleet has begun is not begun for this."""
        try:
            if read_identity(self._store) is None:
                raise SharedStoreError(f"{self._store.url} is no store of a fleet, or is away")
            self._store.put_bytes(conditioning_key(key), data)
        except StorageError as error:
            raise SharedStoreError(str(error)) from None
