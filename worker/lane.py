"""A few threads for what a request needs before it has a seat, and a bound on how many wait for them."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from worker.errors import EngineBusyError

Answer = TypeVar("Answer")


class Lane:
    """Used in one event loop."""

    def __init__(self, *, threads: int, most: int, what: str) -> None:
        """`most` callers at once, waiting ones included; the next is told that `what` is busy."""
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=what.replace(" ", "-"))
        self._most, self._what, self._callers = most, what, 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Be one of the callers while the block runs. Raises EngineBusyError."""
        if self._callers >= self._most:
            raise EngineBusyError(f"{self._callers} callers wait for the {self._what}; try again later")
        self._callers += 1
        try:
            yield
        finally:
            self._callers -= 1

    async def run(self, act: Callable[[], Answer]) -> Answer:
        """Return what `act` returns, run in a thread, on behalf of a caller that has been taken."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)
