"""The store as a client may write to it: the fleet's own, begun only while the fleet has none."""

import redis

from broker.agreements import fleet_store
from storage.base import ArtifactStore
from storage.errors import StorageUnavailableError
from storage.identity import read_identity, store_identity
from storage.known import KnownStore, missing_store


def store_to_write(store: ArtifactStore, connection: redis.Redis, *, fleet: str) -> ArtifactStore:
    """Return `store`, whose identity is looked at again before every write.

    Raises StorageUnavailableError where the fleet has fixed a store and none lies there, StoreIdentityError,
    QueueUnavailableError.
    """
    identity = read_identity(store)
    if identity is None:
        fixed = fleet_store(connection, fleet=fleet)
        if fixed is not None:
            where = "" if fixed.url == store.url else f", or set --storage to {fixed.url}"
            raise StorageUnavailableError(missing_store(store.url, found=None, wanted=fixed.store_id) + where)
        identity = store_identity(store)
    return KnownStore(store, identity)
