"""Node cards in Redis: announced with a lifetime, renewed by the node's supervisor, gone when it dies.

A name belongs to one instance at a time: another one's card is neither replaced nor taken away.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import Final

import redis
from pydantic import ValidationError
from rq.utils import as_text

from broker import keys
from broker.connection import queue_errors
from queue_schemas.environment import DEFAULT_FLEET
from queue_schemas.nodes import NodeCard

log = logging.getLogger(__name__)

_ANNOUNCE: Final = """
-- KEYS: card, set of names. ARGV: card, lifetime, name, instance, instance that may be replaced.
local raw = redis.call('GET', KEYS[1])
if raw then
  local ok, card = pcall(cjson.decode, raw)
  local owner = ok and type(card) == 'table' and card.instance or ''
  if owner ~= ARGV[4] and owner ~= ARGV[5] and owner ~= '' then return raw end
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[3])
return false
"""
_WITHDRAW: Final = """
-- KEYS: card, set of names. ARGV: name, instance.
local raw = redis.call('GET', KEYS[1])
if raw and ARGV[2] ~= '' then
  local ok, card = pcall(cjson.decode, raw)
  if ok and type(card) == 'table' and (card.instance or '') ~= ARGV[2] then return 0 end
end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[1])
return 1
"""


def announce(
    connection: redis.Redis,
    card: NodeCard,
    *,
    ttl_seconds: int,
    replacing: str = "",
    fleet: str = DEFAULT_FLEET,
) -> NodeCard | None:
    """Show this node as alive for `ttl_seconds`; call again well before they are over.

    Returns the card of another instance that holds the name, with nothing changed, unless it is the one to
    replace; else None.
    """
    card_keys = [keys.node_key(fleet, card.node), keys.nodes_key(fleet)]
    owner = [card.node, card.instance, replacing]
    with queue_errors(connection):
        other = connection.eval(_ANNOUNCE, 2, *card_keys, card.model_dump_json(), ttl_seconds, *owner)
    return None if other is None else _parse(as_text(other))


def withdraw(connection: redis.Redis, node: str, *, instance: str = "", fleet: str = DEFAULT_FLEET) -> None:
    """Take the node's card away at once, on an orderly end; another instance's card stays."""
    card_keys = [keys.node_key(fleet, node), keys.nodes_key(fleet)]
    with queue_errors(connection):
        connection.eval(_WITHDRAW, 2, *card_keys, node, instance)


def live_nodes(connection: redis.Redis, *, fleet: str = DEFAULT_FLEET) -> list[NodeCard]:
    """Return the card of every live node, by name; one that this version cannot read is left out."""
    with queue_errors(connection):
        names = sorted(_names(connection.smembers(keys.nodes_key(fleet)), key=keys.nodes_key(fleet)))
        cards = connection.mget([keys.node_key(fleet, name) for name in names]) if names else []
    return [card for raw in cards if raw is not None and (card := _parse(raw)) is not None]


def _names(members: Iterable[bytes | str], *, key: str) -> Iterator[str]:
    for member in members:
        try:
            yield as_text(member)
        except UnicodeDecodeError:
            log.warning("the set %s holds %.100r, which is no node's name; passed over", key, member)


def _parse(raw: bytes | str) -> NodeCard | None:
    try:
        return NodeCard.model_validate_json(raw)
    except ValidationError:
        return None
