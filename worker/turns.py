"""The store of a fleet: as it is where it decides by itself, else by turns under the fleet's locks."""

import logging

import redis

from broker.turns import turns
from storage.base import ArtifactStore
from storage.turns import TurnTakingStore
from storage.uri import open_store

log = logging.getLogger(__name__)


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
    return TurnTakingStore(store, turns(connection, fleet=fleet)) if takes_turns else store
