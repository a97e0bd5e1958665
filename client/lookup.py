"""From the start of an id to the whole: what storage and queue know that begins so.

For what people type; programs give whole ids, which are looked up directly.
"""

from collections.abc import Callable
from typing import Final

from broker.errors import QueueUnavailableError
from client.errors import AmbiguousIdError
from storage.base import ArtifactStore
from storage.layout import RUNS_PREFIX, SWEEPS_PREFIX

SHORTEST: Final = 8
"""Characters that the start of an id must have."""


def complete_id(store: ArtifactStore, start: str, *, entries: Callable[[str], list[str]]) -> str | None:
    """Return the only id of a run or sweep that begins with `start`, None when there is none.

    `entries` gives the queue's entries that begin so; it is not needed where storage knows one. Raises
    AmbiguousIdError.
    """
    if len(start) < SHORTEST:
        return None
    found = {
        key.split("/")[1] for prefix in (SWEEPS_PREFIX, RUNS_PREFIX) for key in store.list(prefix + start)
    }
    try:
        found |= {entry.rpartition("-")[0] for entry in entries(start)}
    except QueueUnavailableError:
        if not found:
            raise
    found = {name for name in found if name.startswith(start)}
    if len(found) > 1:
        raise AmbiguousIdError(start, found=sorted(found))
    return found.pop() if found else None
