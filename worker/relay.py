"""Relay of progress from the engine to Redis: throttled, and never worth a job's life."""

import logging
import time
from typing import Final

import redis

from broker.progress import write_progress
from queue_schemas.events import ProgressEvent, Stage

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 0.25


class ProgressRelay:
    """Writes one entry's progress: each new stage at once, steps at most every quarter of a second."""

    def __init__(self, connection: redis.Redis, entry: str, *, fleet: str) -> None:
        self._connection, self._entry, self._fleet = connection, entry, fleet
        self._stage: Stage | None = None
        self._written = float("-inf")

    @property
    def reached_gpu(self) -> bool:
        """Whether the engine has begun with this job; before that, no fault of the engine is this job's."""
        return self._stage not in (None, Stage.WAITING)

    def __call__(self, event: ProgressEvent) -> None:
        now = time.monotonic()
        last_step = event.steps > 0 and event.step == event.steps
        if event.stage is self._stage and not last_step and now - self._written < EVERY_SECONDS:
            return
        try:
            write_progress(self._connection, self._entry, event=event, fleet=self._fleet)
        except redis.exceptions.RedisError as error:
            log.warning("job %s: progress not written: %s", self._entry, type(error).__name__)
        self._stage, self._written = event.stage, now
