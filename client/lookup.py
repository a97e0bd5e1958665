"""From an id, or the start of one, to what it means now: which run or sweep, and which generation.

Knows no connection: the caller brings the questions that only the queue can answer.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from broker.errors import QueueUnavailableError
from broker.states import RunState
from client.errors import AmbiguousIdError
from client.handle import Outcome, RunHandle
from client.outcomes import latest_manifests, newest_readable
from client.resuming import ended_outcome, job_of
from queue_schemas.sweeps import SweepRun
from storage.base import ArtifactStore
from storage.layout import RUNS_PREFIX, SWEEPS_PREFIX

logger = logging.getLogger(__name__)

SHORTEST: Final = 8
"""Characters that the start of an id must have."""
_ENOUGH: Final = 4
"""Names to show that a start fits several; a store may hold a hundred thousand more."""


def complete_id(store: ArtifactStore, start: str, *, entries: Callable[[str], list[str]]) -> str | None:
    """Return the only id of a run or sweep that begins with `start`, None when there is none.

    `entries` gives the queue's entries that begin so; it is not needed where storage knows one. Raises
    AmbiguousIdError.
    """
    if len(start) < SHORTEST:
        return None
    found = {
        folder.split("/")[1]
        for prefix in (SWEEPS_PREFIX, RUNS_PREFIX)
        for folder in islice(store.folders(prefix + start), _ENOUGH)
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


def newest_handles(
    store: ArtifactStore,
    runs: Sequence[SweepRun],
    *,
    states: Callable[[Sequence[RunHandle]], list[RunState]],
    sweep_id: str | None,
) -> list[RunHandle]:
    """Return a handle per run, at the newest generation that was asked for, is queued or has ended.

    `states` asks the queue, and only about runs that ended badly: they may have been queued again since.
    """
    handles, again = dict[str, RunHandle](), list[RunHandle]()
    manifests = latest_manifests(store, [run.run_id for run in runs], read=newest_readable)
    for run, manifest in zip(runs, manifests, strict=True):
        handles[run.run_id] = handle = RunHandle(
            run_id=run.run_id,
            generation=max(run.generation, manifest.generation if manifest else 1),
            sweep_id=sweep_id,
            label=run.label,
            outcome=ended_outcome(run, manifest),
            job=job_of(run),
            key=run.key,
        )
        if handle.outcome is Outcome.ENDED:
            again.append(replace(handle, generation=handle.generation + 1, outcome=None))
    try:
        found = states(again)
    except QueueUnavailableError as error:  # storage knows the end of every one of them
        logger.warning("%s; what was queued again since is not shown", error)
        return list(handles.values())
    for newer, state in zip(again, found, strict=True):
        if state.status is not None:
            handles[newer.run_id] = newer
    return list(handles.values())
