"""What waits and runs in the fleet's queues, as one value."""

from dataclasses import asdict, dataclass
from typing import Any

import redis

from broker.overview import FleetCounts, QueueOverview, fleet_counts, queue_overview


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsOverview:
    """Every queue, most urgent first, and what lies outside of them."""

    queues: tuple[QueueOverview, ...]
    counts: FleetCounts

    @property
    def queued(self) -> int:
        return sum(queue.queued for queue in self.queues)

    @property
    def running(self) -> int:
        return sum(queue.running for queue in self.queues)

    def as_line(self) -> dict[str, Any]:
        queues = [asdict(queue) for queue in self.queues if queue.queued or queue.running]
        return {"queued": self.queued, "running": self.running, **asdict(self.counts), "queues": queues}


def read_jobs(connection: redis.Redis, *, fleet: str) -> JobsOverview:
    """Raises QueueUnavailableError."""
    queues = queue_overview(connection, fleet=fleet)
    return JobsOverview(queues=tuple(queues), counts=fleet_counts(connection, fleet=fleet))
