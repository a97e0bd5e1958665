"""The latest progress event of a queue entry, as a small hash that expires by itself."""

from collections.abc import Mapping
from typing import Final

import redis
from pydantic import ValidationError

from broker import keys
from queue_schemas.environment import DEFAULT_FLEET
from queue_schemas.events import ProgressEvent

PROGRESS_TTL_SECONDS: Final = 86_400


def write_progress(
    connection: redis.Redis,
    entry: str,
    *,
    event: ProgressEvent,
    fleet: str = DEFAULT_FLEET,
    ttl_seconds: int = PROGRESS_TTL_SECONDS,
) -> None:
    """Replace the entry's progress. Raises redis-py's errors: the caller decides what a lost beat costs."""
    key = keys.progress_key(fleet, entry)
    fields = event.model_dump(mode="json", exclude={"event"})
    items = [part for name, value in fields.items() for part in (name, str(value))]
    with connection.pipeline(transaction=True) as pipeline:
        pipeline.hset(key, items=items)
        pipeline.expire(key, ttl_seconds)
        pipeline.execute()


def parse_progress(fields: Mapping[bytes, bytes]) -> ProgressEvent | None:
    """Return the event in a hash as read; None when there is none, or one of another version."""
    if not fields:
        return None
    try:
        return ProgressEvent.model_validate_strings(
            {
                name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
                for name, value in fields.items()
            }
        )
    except ValidationError:
        return None
