"""Node cards in Redis: announced with a lifetime, renewed by the node's supervisor, gone when it dies."""

import redis
from pydantic import ValidationError
from rq.utils import as_text

from broker import keys
from broker.connection import queue_errors
from queue_schemas.environment import DEFAULT_FLEET
from queue_schemas.nodes import NodeCard


def announce(
    connection: redis.Redis, card: NodeCard, *, ttl_seconds: int, fleet: str = DEFAULT_FLEET
) -> None:
    """Show this node as alive for `ttl_seconds`; call again well before they are over."""
    with queue_errors(connection), connection.pipeline(transaction=True) as pipeline:
        pipeline.set(keys.node_key(fleet, card.node), card.model_dump_json(), ex=ttl_seconds)
        pipeline.sadd(keys.nodes_key(fleet), card.node)
        pipeline.execute()


def withdraw(connection: redis.Redis, node: str, *, fleet: str = DEFAULT_FLEET) -> None:
    """Take the node's card away at once, on an orderly end."""
    with queue_errors(connection), connection.pipeline(transaction=True) as pipeline:
        pipeline.delete(keys.node_key(fleet, node))
        pipeline.srem(keys.nodes_key(fleet), node)
        pipeline.execute()


def live_nodes(connection: redis.Redis, *, fleet: str = DEFAULT_FLEET) -> list[NodeCard]:
    """Return the card of every live node, by name; one that this version cannot read is left out."""
    with queue_errors(connection):
        names = sorted(as_text(member) for member in connection.smembers(keys.nodes_key(fleet)))
        cards = connection.mget([keys.node_key(fleet, name) for name in names]) if names else []
    return [card for raw in cards if raw is not None and (card := _parse(raw)) is not None]


def _parse(raw: bytes | str) -> NodeCard | None:
    try:
        return NodeCard.model_validate_json(raw)
    except ValidationError:
        return None
