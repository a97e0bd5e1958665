"""Work that no job waits for: one thread, a short line, and what does not fit in the line is left undone."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

WAITING: Final = 4
"""Acts in line; each may hold the features of a large job."""


class Background:
    """Ends with the process, in the middle of an act if need be."""

    def __init__(self) -> None:
        self._acts: queue.Queue[Callable[[], object]] = queue.Queue(WAITING)
        threading.Thread(target=self._run, name="conditioning-put", daemon=True).start()

    def do(self, act: Callable[[], object]) -> None:
        try:
            self._acts.put_nowait(act)
        except queue.Full:
            log.info("conditioning cache: an entry is not written, since %d others wait for it", WAITING)

    def _run(self) -> None:
        while True:
            self._acts.get()()
