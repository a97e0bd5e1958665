"""Which store this is: a random id in `store.json`, by which nodes and clients tell that they mean the same.

Two addresses may lead to one store (a path inside and outside a container, two endpoints), and one address
to two (a relative folder); only the id says.
"""

import secrets

from pydantic import Field, ValidationError

from queue_schemas.base import Told, Version1
from storage.base import ArtifactStore
from storage.errors import ArtifactTooLargeError, StoreIdentityError
from storage.layout import STORE_KEY

_LIMIT_BYTES = 4096


class StoreIdentity(Told):
    """The content of `store.json`; written once, by whoever comes first."""

    schema_version: Version1 = 1
    store: str = Field(pattern=r"^[0-9a-f]{32}$")


def store_identity(store: ArtifactStore) -> str:
    """Return the store's id, giving it one if it has none yet.

    Raises StorageUnavailableError (a new store must be written to), StoreIdentityError.
    """
    known = read_identity(store)
    if known is not None:
        return known
    own = StoreIdentity(store=secrets.token_hex(16))
    if store.put_if_absent(STORE_KEY, own.model_dump_json().encode()):
        return own.store
    known = read_identity(store)
    if known is None:
        raise StoreIdentityError(store.url, fault="exists and cannot be read")
    return known


def read_identity(store: ArtifactStore) -> str | None:
    """Return the store's id, None where nothing was ever written. Raises StoreIdentityError."""
    try:
        data = store.read_bytes(STORE_KEY, limit_bytes=_LIMIT_BYTES)
        return None if data is None else StoreIdentity.model_validate_json(data).store
    except (ValidationError, ArtifactTooLargeError):
        raise StoreIdentityError(store.url, fault="holds something else") from None
