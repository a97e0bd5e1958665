"""What the first node of a fleet fixes for all others: its store, and what each name means.

Both stand until an operator has them forgotten: runs that are queued or done were named after them.
"""

from typing import Literal, TypeVar

import redis
from pydantic import ValidationError
from rq.utils import as_text

from broker import keys
from broker.connection import queue_errors
from broker.errors import QueueEntryError
from queue_schemas.base import Told
from queue_schemas.environment import DEFAULT_FLEET

NameKind = Literal["checkpoint", "lora"]


class _Agreement(Told):
    node: str
    """Who fixed it."""


A = TypeVar("A", bound=_Agreement)


class StoreAgreement(_Agreement):
    """The store of a fleet."""

    store_id: str
    url: str
    """As that node reaches it; holds no secret."""


class NameAgreement(_Agreement):
    """The files behind the name of a checkpoint or a LoRA."""

    kind: NameKind
    name: str
    identities: dict[str, str]
    """Role to `FileIdentity.identity`."""


def agree_on_store(
    connection: redis.Redis, own: StoreAgreement, *, fleet: str = DEFAULT_FLEET
) -> StoreAgreement:
    """Return the fleet's store, which is `own` if there was none. Raises QueueEntryError."""
    return _agree(connection, keys.store_key(fleet), own)


def fleet_store(connection: redis.Redis, *, fleet: str = DEFAULT_FLEET) -> StoreAgreement | None:
    """Return the fleet's store; None while no node has fixed it. Raises QueueEntryError."""
    key = keys.store_key(fleet)
    with queue_errors(connection):
        standing = connection.get(key)
    return None if standing is None else _read(StoreAgreement, key, standing)


def forget_store(connection: redis.Redis, *, fleet: str = DEFAULT_FLEET) -> bool:
    """Let the next node fix the store anew; False when nothing was fixed."""
    with queue_errors(connection):
        return bool(connection.delete(keys.store_key(fleet)))


def forget_name(connection: redis.Redis, kind: NameKind, *, name: str, fleet: str = DEFAULT_FLEET) -> bool:
    """Let the next node fix anew what `name` means; False when nothing was fixed."""
    with queue_errors(connection):
        return bool(connection.delete(keys.name_key(fleet, kind, name)))


def agree_on_name(
    connection: redis.Redis, own: NameAgreement, *, fleet: str = DEFAULT_FLEET
) -> NameAgreement:
    """Return what the name means in this fleet, which is `own` if nothing was. Raises QueueEntryError."""
    return _agree(connection, keys.name_key(fleet, own.kind, own.name), own)


def _agree(connection: redis.Redis, key: str, own: A) -> A:
    with queue_errors(connection):
        if connection.set(key, own.model_dump_json(), nx=True):
            return own
        standing = connection.get(key)
    if standing is None:  # deleted in between, by the operator who wants it fixed anew
        return _agree(connection, key, own)
    return _read(type(own), key, standing)


def _read(kind: type[A], key: str, standing: bytes | str) -> A:
    try:
        return kind.model_validate_json(as_text(standing))
    except ValidationError:
        raise QueueEntryError(
            f"the key {key} holds something else; delete it (redis-cli DEL {key})"
        ) from None
