"""What lies in the fleet's queues: how much waits, how much runs, for how long, and what needs a person."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq.utils import as_text

from broker import keys
from broker.connection import queue_errors
from broker.errors import QueueEntryError
from broker.refusals import met_foreign_key
from queue_schemas.environment import DEFAULT_FLEET
from queue_schemas.runs import Priority

log = logging.getLogger(__name__)

_RANK: Final = {priority: rank for rank, priority in enumerate(Priority)}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOverview:
    """One queue: a priority and a set of needs."""

    name: str
    priority: Priority
    needs: list[str]
    queued: int
    running: int
    oldest_seconds: float | None
    """How long its first entry has waited; None when it is empty."""
    foreign: tuple[str, ...] = ()
    """Its keys that hold something else; they count as empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCounts:
    """Entries of the fleet outside its queues."""

    due: int
    """Waiting for their next attempt."""
    dead: int
    """Failed at their last attempt."""
    parked: int
    """Nothing that a worker could read."""
    foreign: tuple[str, ...] = ()
    """Keys that hold something else; they count as empty."""


def queue_overview(connection: redis.Redis, *, fleet: str = DEFAULT_FLEET) -> list[QueueOverview]:
    """Return every queue that ever held an entry, most urgent first. Raises QueueUnavailableError."""
    with queue_errors(connection):
        queues = registered_queues(connection, fleet=fleet)
        now = server_time(connection)
        with connection.pipeline(transaction=False) as pipeline:
            for queue in queues:
                pipeline.llen(keys.list_key(queue.name))
                pipeline.zcard(keys.leases_key(queue.name))
                pipeline.lindex(keys.list_key(queue.name), 0)
            answers = pipeline.execute(raise_on_error=False)
        counts = [[_known(answer) for answer in answers[at : at + 3]] for at in range(0, len(answers), 3)]
        queued_at = _queued_times(connection, [head for _, _, head in counts])
    return [
        QueueOverview(
            name=queue.name,
            priority=queue.priority,
            needs=queue.needs,
            queued=queued or 0,
            running=running or 0,
            oldest_seconds=None if since is None else max(0.0, now - since),
            foreign=_foreign({keys.list_key(queue.name): queued, keys.leases_key(queue.name): running}),
        )
        for queue, (queued, running, _), since in zip(queues, counts, queued_at, strict=True)
    ]


def fleet_counts(connection: redis.Redis, *, fleet: str = DEFAULT_FLEET) -> FleetCounts:
    """Return what lies outside the queues. Raises QueueUnavailableError."""
    with queue_errors(connection), connection.pipeline(transaction=False) as pipeline:
        pipeline.zcard(keys.due_key(fleet))
        pipeline.llen(keys.dead_key(fleet))
        pipeline.hlen(keys.poison_key(fleet))
        due, dead, parked = (_known(answer) for answer in pipeline.execute(raise_on_error=False))
    foreign = _foreign({keys.due_key(fleet): due, keys.dead_key(fleet): dead, keys.poison_key(fleet): parked})
    return FleetCounts(due=due or 0, dead=dead or 0, parked=parked or 0, foreign=foreign)


def _known(answer: Any) -> Any:
    """Return an answer; None where the key holds something of another type."""
    if isinstance(answer, Exception):
        if met_foreign_key(answer):
            return None
        raise answer
    return answer


def _foreign(counts: Mapping[str, int | None]) -> tuple[str, ...]:
    found = tuple(key for key, count in counts.items() if count is None)
    for key in found:
        log.warning("the key %s holds something else than this project writes; passed over", key)
    return found


@dataclass(frozen=True, slots=True)
class RegisteredQueue:
    """A queue as the submit script registered it."""

    name: str
    priority: Priority
    needs: list[str]


def registered_queues(connection: redis.Redis, *, fleet: str) -> list[RegisteredQueue]:
    """Return every queue of the fleet, most urgent first; a registration that cannot be read is left out."""
    found, key = [], keys.registered_key(fleet)
    try:
        registered = connection.hgetall(key)
    except redis.exceptions.ResponseError as error:
        if not met_foreign_key(error):
            raise
        raise QueueEntryError(
            f"the key {key} holds something else; delete it (redis-cli DEL {key})"
        ) from None
    for name, raw in registered.items():
        try:
            fields = json.loads(raw)
            queue = RegisteredQueue(as_text(name), Priority(fields["priority"]), list(fields["needs"]))
        except (ValueError, KeyError, TypeError):
            continue
        found.append(queue)
    return sorted(found, key=lambda queue: (_RANK[queue.priority], queue.name))


def server_time(connection: redis.Redis) -> float:
    """Return the server's clock, in seconds."""
    seconds, microseconds = connection.time()
    return float(seconds + microseconds / 1e6)


def _queued_times(connection: redis.Redis, heads: Sequence[bytes | None]) -> list[float | None]:
    with connection.pipeline(transaction=False) as pipeline:
        for head in heads:
            entry = head.decode("utf-8", "replace") if head is not None else "-"
            pipeline.hget(keys.entry_key(entry), "queued_time")
        answers = pipeline.execute(raise_on_error=False)
    return [
        _seconds(answer) if head is not None else None for head, answer in zip(heads, answers, strict=True)
    ]


def _seconds(answer: object) -> float | None:
    try:
        return float(answer) if isinstance(answer, bytes) else None
    except ValueError:
        return None
