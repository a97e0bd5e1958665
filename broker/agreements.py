"""What the first node of a fleet fixes for all others: which store, and what a checkpoint's name means.

Both stand until an operator deletes the key: runs that are queued or done were named after them.
"""

from collections.abc import Mapping

import redis
from pydantic import BaseModel, ConfigDict, ValidationError
from rq.utils import as_text

from broker import keys
from broker.connection import queue_errors
from broker.errors import QueueEntryError
from queue_schemas.environment import DEFAULT_FLEET


class _Agreement(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    node: str
    """Who fixed it."""


class StoreAgreement(_Agreement):
    """The store of a fleet."""

    store_id: str
    url: str
    """As that node reaches it; holds no secret."""


class CheckpointAgreement(_Agreement):
    """The files behind one checkpoint's name."""

    identities: Mapping[str, str]
    """Role to `CheckpointFile.identity`."""


def agree_on_store(
    connection: redis.Redis, own: StoreAgreement, *, fleet: str = DEFAULT_FLEET
) -> StoreAgreement:
    """Return the fleet's store, which is `own` if there was none. Raises QueueEntryError."""
    return StoreAgreement.model_validate(_agree(connection, keys.store_key(fleet), own))


def agree_on_checkpoint(
    connection: redis.Redis, name: str, *, own: CheckpointAgreement, fleet: str = DEFAULT_FLEET
) -> CheckpointAgreement:
    """Return what `name` means in this fleet, which is `own` if nothing was fixed. Raises QueueEntryError."""
    return CheckpointAgreement.model_validate(_agree(connection, keys.checkpoint_key(fleet, name), own))


def _agree(connection: redis.Redis, key: str, own: _Agreement) -> _Agreement:
    with queue_errors(connection):
        if connection.set(key, own.model_dump_json(), nx=True):
            return own
        standing = connection.get(key)
    if standing is None:  # deleted in between, by the operator who wants it fixed anew
        return _agree(connection, key, own)
    try:
        return type(own).model_validate_json(as_text(standing))
    except ValidationError:
        raise QueueEntryError(
            f"the key {key} holds something else; delete it (redis-cli DEL {key})"
        ) from None
