"""Dead letters: entries that failed at their last attempt, with the end of that attempt's log, for people."""

import json
from dataclasses import dataclass

import redis

from broker import keys
from broker.connection import queue_errors
from broker.refusals import met_foreign_key
from queue_schemas import limits
from queue_schemas.environment import DEFAULT_FLEET


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """What is told of one such entry."""

    entry: str
    attempt: int
    reason: str
    log: str = ""
    """Empty where the log died with its node."""

    def dumps(self) -> str:
        """Return it as JSON of bounded size."""
        reason, log = self.reason[:500], self.log[-limits.LOG_TAIL_CHARACTERS :]
        return json.dumps({"entry": self.entry, "attempt": self.attempt, "reason": reason, "log": log})


def dead_letters(connection: redis.Redis, *, most: int, fleet: str = DEFAULT_FLEET) -> list[DeadLetter]:
    """Return the newest letters, newest first; what is none is left out. Raises QueueUnavailableError."""
    try:
        with queue_errors(connection):
            found = connection.lrange(keys.dead_key(fleet), -most, -1)
    except redis.exceptions.ResponseError as error:
        if not met_foreign_key(error):
            raise
        return []  # `fleet_counts` names the key
    return [letter for raw in reversed(found) if (letter := _parse(raw)) is not None]


def _parse(raw: bytes | str) -> DeadLetter | None:
    try:
        fields = json.loads(raw)
        return DeadLetter(
            entry=str(fields["entry"]),
            attempt=int(fields["attempt"]),
            reason=str(fields["reason"]),
            log=str(fields.get("log", "")),
        )
    except (ValueError, KeyError, TypeError):
        return None
