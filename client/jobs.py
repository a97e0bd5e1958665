"""What waits and runs in the fleet's queues, as one value."""

from dataclasses import asdict, dataclass
from typing import Any, Final

import redis

from broker.letters import DeadLetter, dead_letters
from broker.overview import FleetCounts, QueueOverview, fleet_counts, queue_overview

LETTERS: Final = 5
"""Dead letters that are shown, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsOverview:
    """Every queue, most urgent first, and what lies outside of them."""

    queues: tuple[QueueOverview, ...]
    counts: FleetCounts
    letters: tuple[DeadLetter, ...]
    """The newest runs that failed at their last attempt, newest first."""

    @property
    def queued(self) -> int:
        return sum(queue.queued for queue in self.queues)

    @property
    def running(self) -> int:
        return sum(queue.running for queue in self.queues)

    def as_line(self) -> dict[str, Any]:
        queues = [asdict(queue) for queue in self.queues if queue.queued or queue.running]
        letters = [asdict(letter) for letter in self.letters]
        totals = {"queued": self.queued, "running": self.running, **asdict(self.counts)}
        return {**totals, "queues": queues, "dead_letters": letters}


def read_jobs(connection: redis.Redis, *, fleet: str) -> JobsOverview:
    """Raises QueueUnavailableError."""
    return JobsOverview(
        queues=tuple(queue_overview(connection, fleet=fleet)),
        counts=fleet_counts(connection, fleet=fleet),
        letters=tuple(dead_letters(connection, most=LETTERS, fleet=fleet)),
    )
