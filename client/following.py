"""Follow runs to their end: every change of where they stand, also through an outage of Redis.

Knows no connection: the caller brings the question that the queue answers.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from broker.errors import QueueUnavailableError
from client.handle import RunHandle, RunStatus
from client.standing import settled
from storage.base import ArtifactStore

logger = logging.getLogger(__name__)

QUEUE_PATIENCE_SECONDS: Final = 60.0
"""How long following goes on while Redis does not answer; storage is read all the while."""


def follow_runs(
    store: ArtifactStore,
    runs: Sequence[RunHandle],
    *,
    ask: Callable[[Sequence[RunHandle]], list[RunStatus]],
    pause: Callable[[], None],
) -> Iterator[RunStatus]:
    """Yield every run's status, by `ask`, now and after each change, until all have ended.

    Raises QueueUnavailableError when Redis stays away.
    """
    pending, seen = list(runs), dict[str, RunStatus]()
    answered, is_away = time.monotonic(), False
    while pending:
        try:
            statuses = ask(pending)
            answered, is_away = time.monotonic(), False
        except QueueUnavailableError as error:
            if time.monotonic() - answered > QUEUE_PATIENCE_SECONDS:
                raise
            if not is_away:  # once per outage
                logger.warning("%s; waiting for it", error)
            is_away = True
            statuses = [s for run in pending if (s := settled(store, run)) is not None]
        for status in statuses:
            if seen.get(status.run_id) != status:
                seen[status.run_id] = status
                yield status
        ended = {status.run_id for status in statuses if status.status.terminal}
        pending = [run for run in pending if run.run_id not in ended]
        if pending:
            pause()
