"""The store of a fleet: as it is where it decides by itself, else by turns under the fleet's locks."""

import logging

import redis

from broker.agreements import fleet_store
from broker.turns import turns
from storage.base import ArtifactStore
from storage.identity import store_identity
from storage.turns import TurnTakingStore
from storage.uri import open_known_store, open_store

log = logging.getLogger(__name__)


def fleet_store_id(url: str, connection: redis.Redis, *, fleet: str) -> str:
    """Return the id of the fleet's store; only where none is fixed is the one at `url` asked, and begun.

    Raises QueueUnavailableError, QueueEntryError, StorageError.
    """
    fixed = fleet_store(connection, fleet=fleet)
    return store_identity(open_store(url)) if fixed is None else fixed.store_id


def decides_by_itself(url: str, *, store_id: str) -> bool:
    """Try once, at the start of a process, whether the store's conditional write can be trusted."""
    store = open_known_store(url, identity=store_id)
    if store.conditional_writes():
        return True
    log.warning("%s does not refuse a second write: manifests are written by turns, under a lock", store.url)
    return False


def open_fleet_store(
    url: str, connection: redis.Redis, *, fleet: str, store_id: str, takes_turns: bool
) -> ArtifactStore:
    """Return the store of this id at `url`, by turns where it cannot decide by itself."""
    store = open_known_store(url, identity=store_id)
    return TurnTakingStore(store, turns(connection, fleet=fleet)) if takes_turns else store
