"""Summaries of sweeps, made from storage alone, a little at a time: a janitor leads only while it beats.

Runs are looked at in the sweep's order; the first that has not ended stops the look, and the next one goes on
from there, so a long sweep costs one read per run and one per look. A sweep that Redis has lost, or whose
last run ended for the sake of another, is found by a round through storage.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import redis
from pydantic import ValidationError

from broker.errors import QueueEntryError
from broker.keys import entry_id
from broker.recovery import begin_round
from broker.states import read_states
from broker.sweeps import forget_sweep, look_again, sweeps_to_look_at, watch_sweep
from queue_schemas import limits
from queue_schemas.events import JobStatus
from queue_schemas.results import Manifest
from queue_schemas.summaries import RunSummary, SweepSummary
from queue_schemas.sweeps import Sweep
from storage.base import ArtifactStore
from storage.errors import StorageError, StorageUnavailableError
from storage.layout import SWEEPS_PREFIX, summary_key, sweep_key
from worker.attempt import read_manifest

log = logging.getLogger(__name__)

_ROUND_SECONDS: Final = 3600.0
"""How often storage is searched for sweeps without a summary; at once after Redis has lost everything."""
_SWEEPS_AT_ONCE: Final = 20
_READS_AT_ONCE: Final = 200
_KEYS_AT_ONCE: Final = 1_000
_FOUND_AT_ONCE: Final = 10
"""Of a round; fewer than are looked at, so that sweeps under way do not wait behind it."""


@dataclass(slots=True)
class _Look:
    """How far a sweep was looked at; holds no jobs, which may be megabytes."""

    created_at: str
    runs: list[tuple[str, int]]
    """Each with the generation that was asked for."""
    ended: list[RunSummary] = field(default_factory=list)
    finished_at: str = ""


class Summaries:
    """What one janitor knows of the sweeps that it watches; lost with it, and found again in storage."""

    def __init__(
        self, connection: redis.Redis, store: ArtifactStore, *, fleet: str, every_seconds: float
    ) -> None:
        self._connection, self._store, self._fleet = connection, store, fleet
        self._every = every_seconds
        self._looks: dict[str, _Look] = {}
        self._round: Iterator[str] = iter(())
        self._summarised = ""
        """The last sweep of the round that has a summary: its key comes right before sweep.json's."""

    def advance(self) -> None:
        """Look at every sweep whose time has come. Raises redis-py's errors."""
        self._search()
        for sweep_id in sweeps_to_look_at(self._connection, fleet=self._fleet, most=_SWEEPS_AT_ONCE):
            try:
                done = self._advance(sweep_id)
            except StorageUnavailableError as error:
                log.warning("sweep %s: %s", sweep_id, error)
                done = False
            except (StorageError, ValidationError, QueueEntryError) as error:  # must not stop the others
                log.error("sweep %s: no summary: %s", sweep_id, error)
                done = True
            if done:
                self._looks.pop(sweep_id, None)
                forget_sweep(self._connection, sweep_id, fleet=self._fleet)
            else:
                look_again(self._connection, sweep_id, fleet=self._fleet, seconds=self._every)

    def _search(self) -> None:
        """Watch some sweeps that have no summary in storage, whatever Redis knows of them."""
        if begin_round(self._connection, "summaries", fleet=self._fleet, every_seconds=_ROUND_SECONDS):
            self._round, self._summarised = self._store.list(SWEEPS_PREFIX), ""
        found = 0
        try:
            for key in islice(self._round, _KEYS_AT_ONCE):
                sweep_id = key.split("/")[1]
                if key == summary_key(sweep_id):
                    self._summarised = sweep_id
                elif key == sweep_key(sweep_id) and sweep_id != self._summarised:
                    watch_sweep(self._connection, sweep_id, fleet=self._fleet)
                    found += 1
                    if found == _FOUND_AT_ONCE:
                        return
        except StorageError as error:  # the round has ended with that; the next one begins anew
            log.warning("sweeps not searched: %s", error)

    def _advance(self, sweep_id: str) -> bool:
        """Return True when nothing more is to be done for this sweep."""
        look = self._looks.get(sweep_id) or self._begin(sweep_id)
        if look is None:
            return True
        self._looks[sweep_id] = look
        for run_id, generation in look.runs[len(look.ended) : len(look.ended) + _READS_AT_ONCE]:
            manifest = self._latest(run_id, generation)
            if manifest is None:
                return self._is_lost(run_id, generation)
            error = manifest.error.code if manifest.error else None
            look.ended.append(
                RunSummary(run_id=run_id, generation=manifest.generation, status=manifest.status, error=error)
            )
            look.finished_at = max(look.finished_at, manifest.finished_at)
        if len(look.ended) < len(look.runs):
            return False
        return self._finish(sweep_id, look)

    def _finish(self, sweep_id: str, look: _Look) -> bool:
        """Write the summary, unless the sweep was taken up again while it was looked at."""
        fresh = self._begin(sweep_id)
        if fresh is not None and fresh.runs != look.runs:
            self._looks[sweep_id] = fresh
            return False
        counts = Counter(run.status for run in look.ended)
        summary = SweepSummary(
            sweep_id=sweep_id,
            succeeded=counts[JobStatus.SUCCEEDED],
            failed=counts[JobStatus.FAILED],
            cancelled=counts[JobStatus.CANCELLED],
            finished_at=max(look.created_at, look.finished_at),
            runs=look.ended,
        )
        self._store.put_bytes(summary_key(sweep_id), summary.model_dump_json().encode())
        log.info("sweep %s: ended, %d of %d succeeded", sweep_id, summary.succeeded, len(look.ended))
        return True

    def _begin(self, sweep_id: str) -> _Look | None:
        data = self._store.read_bytes(sweep_key(sweep_id), limit_bytes=limits.SWEEP_BYTES)
        if data is None:
            log.warning("sweep %s is not in this store; no summary", sweep_id)
            return None
        sweep = Sweep.model_validate_json(data)
        return _Look(sweep.created_at, [(run.run_id, run.generation) for run in sweep.runs])

    def _latest(self, run_id: str, generation: int) -> Manifest | None:
        """Return how the generation that the sweep asked for ended, or a later one."""
        found = None
        while (manifest := read_manifest(self._store, run_id, generation)) is not None:
            found, generation = manifest, generation + 1
        return found

    def _is_lost(self, run_id: str, generation: int) -> bool:
        """Say whether nobody is at a run that has no manifest; the next round comes back to its sweep."""
        (state,) = read_states(self._connection, [entry_id(run_id, generation)], fleet=self._fleet)
        is_going = state.status is not None and not state.status.terminal
        return not is_going and self._latest(run_id, generation) is None  # it may have ended just now
