"""Signs of life on standard error: while runs are followed and nobody sees a bar, and while files travel."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from client.handle import RunHandle, RunStatus
from client.transfers import Progress
from queue_schemas.events import JobStatus

EVERY_SECONDS: Final = 30.0
FIRST_TRANSFER_SECONDS: Final = 2.0
TRANSFER_SECONDS: Final = 10.0


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


class TransferNotes:
    """Says how far uploads and fetches are: once they take over two seconds, then every ten."""

    def __init__(self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._verb, self._next = "", 0.0

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        if progress.verb != self._verb:
            self._verb, self._next = progress.verb, now + FIRST_TRANSFER_SECONDS
        if now >= self._next and progress.name:
            self._next = now + TRANSFER_SECONDS
            sizes = f", {_mib(progress.bytes_done)} of {_mib(progress.bytes)} MiB" if progress.bytes else ""
            done = f"{progress.files_done} of {progress.files} files{sizes}"
            self._say(f"{progress.verb} references: {done}; now {progress.name}")


def _mib(count: int) -> str:
    return f"{count / 1024**2:.1f}"
