"""Signs of life on standard error while runs are followed and nobody sees a bar: a line each half minute."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from client.handle import RunHandle, RunStatus
from queue_schemas.events import JobStatus

EVERY_SECONDS: Final = 30.0


class Heartbeat:
    """Says where the runs stand while the rest waits; `pause` is what `H3Client.follow` waits by."""

    def __init__(
        self,
        runs: Sequence[RunHandle],
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._runs, self._say, self._clock, self._sleep = runs, say, clock, sleep
        self._statuses: dict[str, RunStatus] = {}
        self._said = clock()

    def update(self, status: RunStatus) -> None:
        self._statuses[status.run_id] = status

    def pause(self, seconds: float) -> None:
        self._sleep(seconds)
        if self._clock() - self._said >= EVERY_SECONDS:
            self._said = self._clock()
            self._say(self._where())

    def _where(self) -> str:
        """Return `denoise 3/20, 0:42 left` of one run, `3 of 48 ended, 2 running` of several."""
        from client.show import state_text  # noqa: PLC0415 - rich; most runs end before the first line

        if len(self._runs) == 1:
            status = self._statuses.get(self._runs[0].run_id)
            return "waiting" if status is None else state_text(status)
        statuses = [status.status for status in self._statuses.values()]
        ended = sum(status.terminal for status in statuses)
        running = statuses.count(JobStatus.RUNNING)
        return f"{ended} of {len(self._runs)} ended, {running} running"
