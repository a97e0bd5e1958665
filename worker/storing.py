"""Wait for a store that is away: repeat an act until it succeeds or the time is over.

For job processes, which hold the lease of their run meanwhile: what is done already is not done again.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, TypeVar

from storage.errors import StorageUnavailableError

log = logging.getLogger(__name__)

_FIRST_SECONDS: Final = 0.5
_LAST_SECONDS: Final = 30.0

Answer = TypeVar("Answer")


def until_stored(
    act: Callable[[], Answer], *, seconds: float, what: str, on_wait: Callable[[], object] = lambda: None
) -> Answer:
    """Return what `act` returns; while the store is away try again, for `seconds`, then raise its error.

    `on_wait` is called before each pause.
    """
    deadline, pause = time.monotonic() + seconds, _FIRST_SECONDS
    while True:
        try:
            return act()
        except StorageUnavailableError as error:
            if time.monotonic() + pause > deadline:
                raise
            log.warning("%s: waiting for the store: %s", what, error)
        on_wait()
        time.sleep(pause)
        pause = min(2 * pause, _LAST_SECONDS)
