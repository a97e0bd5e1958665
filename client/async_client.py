"""`AsyncH3Client`: what `H3Client` does, for programs that run an event loop.

Every call runs in a thread, so a slow store or a Redis that is away never holds up the loop; only following
waits in the loop itself. Cancelling a task that follows leaves the runs alone.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from broker.cancel import CancelOutcome
from client.client import H3Client
from client.handle import AnyJob, RunHandle, RunResult, RunStatus, SweepHandle, Upload
from client.submission import HowOptions
from queue_schemas.nodes import NodeCard


class AsyncH3Client:
    """A fleet's queue and its storage; made of an `H3Client`, or of what one is made of."""

    def __init__(self, client: H3Client | None = None, **settings: Any) -> None:
        """`settings` are those of H3Client. Raises what it raises."""
        self.blocking = client or H3Client(**settings)

    async def submit(self, job: AnyJob | Mapping[str, Any], **how: Unpack[HowOptions]) -> RunHandle:
        return await asyncio.to_thread(self.blocking.submit, job, **how)

    async def submit_many(
        self, jobs: Sequence[AnyJob | Mapping[str, Any]], **how: Unpack[HowOptions]
    ) -> SweepHandle:
        return await asyncio.to_thread(self.blocking.submit_many, jobs, **how)

    async def sweep(
        self,
        prompts: Sequence[str],
        seeds: Sequence[int],
        *,
        fields: Mapping[str, Any] | None = None,
        **how: Unpack[HowOptions],
    ) -> SweepHandle:
        return await asyncio.to_thread(self.blocking.sweep, prompts, seeds, fields=fields, **how)

    async def resume(self, sweep_id: str, *, retry_failed: bool = False) -> SweepHandle:
        return await asyncio.to_thread(self.blocking.resume, sweep_id, retry_failed=retry_failed)

    async def find(self, name: str) -> SweepHandle | RunHandle:
        return await asyncio.to_thread(self.blocking.find, name)

    async def get(self, run_id: str) -> RunStatus:
        return await asyncio.to_thread(self.blocking.get, run_id)

    async def statuses(self, handle: RunHandle | SweepHandle) -> list[RunStatus]:
        return await asyncio.to_thread(self.blocking.statuses, handle)

    async def follow(
        self, handle: RunHandle | SweepHandle, *, poll_seconds: float | None = None
    ) -> AsyncIterator[RunStatus]:
        """Yield every run's status now and after each change, until all have ended."""
        left = threading.Event()  # ends the pause of a thread whose reader has gone
        updates = self.blocking.follow(handle, poll_seconds=poll_seconds, pause=lambda s: _pause(left, s))
        try:
            while (status := await asyncio.to_thread(next, updates, None)) is not None:
                yield status
        finally:
            left.set()

    async def results(self, handle: RunHandle | SweepHandle) -> list[RunResult]:
        return await asyncio.to_thread(lambda: list(self.blocking.results(handle)))

    async def result(self, run: RunHandle) -> RunResult | None:
        return await asyncio.to_thread(self.blocking.result, run)

    async def cancel(
        self, handle: RunHandle | SweepHandle, *, force: bool = False
    ) -> dict[str, CancelOutcome]:
        return await asyncio.to_thread(self.blocking.cancel, handle, force=force)

    async def upload(self, path: Path) -> Upload:
        return await asyncio.to_thread(self.blocking.upload, path)

    async def nodes(self) -> list[NodeCard]:
        return await asyncio.to_thread(self.blocking.nodes)


class _ReaderGoneError(Exception):
    """Raised inside a following thread whose reader has gone."""


def _pause(left: threading.Event, seconds: float) -> None:
    if left.wait(seconds):
        raise _ReaderGoneError
