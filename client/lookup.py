"""From an id, or the start of one, to what it means now: which run or sweep, and which generation.

The caller brings the questions that only the queue can answer; where storage knows, none is asked.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

import redis

from broker.connection import queue_errors
from broker.errors import QueueEntryError, QueueUnavailableError
from broker.keys import entry_id, poison_key
from broker.states import RunState, find_entries
from client.errors import AmbiguousIdError, UnknownRunError
from client.handle import Outcome, RunHandle, SweepHandle
from client.outcomes import latest_manifests, newest_readable, read_sweep
from client.resuming import ended_outcome, job_of
from client.standing import settled
from queue_schemas.sweeps import Sweep, SweepRun
from storage.base import ArtifactStore
from storage.errors import StorageAddressError
from storage.layout import RUNS_PREFIX, SWEEPS_PREFIX

logger = logging.getLogger(__name__)

States = Callable[[Sequence[RunHandle]], list[RunState]]
"""What the queue says of runs, in order."""
SHORTEST: Final = 8
"""Characters that the start of an id must have."""
_ENOUGH: Final = 4
"""Names to show that a start fits several; a store may hold a hundred thousand more."""


def find_handle(
    store: ArtifactStore, name: str, *, states: States, connect: Callable[[], redis.Redis], fleet: str
) -> SweepHandle | RunHandle:
    """Return the sweep or run of that id, or of the only id that begins so.

    Raises UnknownRunError, AmbiguousIdError, QueueUnavailableError.
    """

    def find_exactly(name: str) -> SweepHandle | RunHandle | None:
        found = _stored_sweep(store, name, states=states) or _run(store, name, states=states)
        parked = isinstance(found, RunHandle) and _is_parked(found, connect=connect, fleet=fleet)
        return None if parked else found

    found, away = None, None
    try:
        try:
            found = find_exactly(name)
        except QueueUnavailableError as error:  # storage may know what begins so
            away = error
        if found is None:
            whole = complete_id(store, name, entries=lambda start: find_entries(connect(), start))
            found = find_exactly(whole) if whole is not None else None
    except (StorageAddressError, QueueEntryError):  # nothing can have such a name
        pass
    if found is None:
        raise away or UnknownRunError(name, storage_url=store.url)
    return found


def find_sweep(store: ArtifactStore, name: str) -> Sweep:
    """Return the sweep of that id, or of the only id in storage that begins so.

    Raises UnknownRunError, AmbiguousIdError.
    """
    sweep = _read_sweep(store, name) or _read_sweep(
        store, complete_id(store, name, entries=lambda _: []) or ""
    )
    if sweep is None:
        raise UnknownRunError(name, storage_url=store.url)
    return sweep


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
    states: States,
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


def _stored_sweep(store: ArtifactStore, name: str, *, states: States) -> SweepHandle | None:
    sweep = _read_sweep(store, name)
    if sweep is None:
        return None
    runs = newest_handles(store, sweep.runs, states=states, sweep_id=name)
    return SweepHandle(sweep_id=name, runs=tuple(runs))


def _run(store: ArtifactStore, name: str, *, states: States) -> RunHandle | None:
    (handle,) = newest_handles(store, [SweepRun(run_id=name, job={})], states=states, sweep_id=None)
    is_known = settled(store, handle) is not None or states([handle])[0].status is not None
    return handle if is_known else None


def _is_parked(run: RunHandle, *, connect: Callable[[], redis.Redis], fleet: str) -> bool:
    """Say whether the entry of this name is one that no node could read: no run of anybody."""
    try:
        connection = connect()
        with queue_errors(connection):
            return bool(connection.hexists(poison_key(fleet), entry_id(run.run_id, run.generation)))
    except (QueueUnavailableError, redis.exceptions.ResponseError):
        return False


def _read_sweep(store: ArtifactStore, name: str) -> Sweep | None:
    try:
        return read_sweep(store, name)
    except StorageAddressError:  # no sweep can have such a name
        return None
