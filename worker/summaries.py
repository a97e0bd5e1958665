"""Summaries of sweeps, made from storage alone, a little at a time: a janitor leads only while it beats.

Runs are looked at in the sweep's order; the first that has not ended stops the look, and the next one goes on
from there, so a long sweep costs one read per run and one per look.
"""

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import redis
from pydantic import ValidationError

from broker.sweeps import forget_sweep, look_again, sweeps_to_look_at
from queue_schemas import limits
from queue_schemas.events import JobStatus
from queue_schemas.results import Manifest
from queue_schemas.summaries import RunSummary, SweepSummary
from queue_schemas.sweeps import Sweep, SweepRun
from storage.base import ArtifactStore
from storage.errors import StorageError, StorageUnavailableError
from storage.layout import summary_key, sweep_key
from worker.attempt import read_manifest, utc_now

log = logging.getLogger(__name__)

_SWEEPS_AT_ONCE: Final = 20
_READS_AT_ONCE: Final = 200


@dataclass(slots=True)
class _Look:
    sweep: Sweep
    ended: list[RunSummary] = field(default_factory=list)


class Summaries:
    """What one janitor knows of the sweeps that it watches; lost with it, and found again in storage."""

    def __init__(
        self, connection: redis.Redis, store: ArtifactStore, *, fleet: str, every_seconds: float
    ) -> None:
        self._connection, self._store, self._fleet = connection, store, fleet
        self._every = every_seconds
        self._looks: dict[str, _Look] = {}

    def advance(self) -> None:
        """Look at every sweep whose time has come. Raises redis-py's errors."""
        for sweep_id in sweeps_to_look_at(self._connection, fleet=self._fleet, most=_SWEEPS_AT_ONCE):
            try:
                done = self._advance(sweep_id)
            except StorageUnavailableError as error:
                log.warning("sweep %s: %s", sweep_id, error)
                done = False
            except (StorageError, ValidationError) as error:  # one damaged sweep must not stop the others
                log.error("sweep %s: no summary: %s", sweep_id, error)
                done = True
            if done:
                self._looks.pop(sweep_id, None)
                forget_sweep(self._connection, sweep_id, fleet=self._fleet)
            else:
                look_again(self._connection, sweep_id, fleet=self._fleet, seconds=self._every)

    def _advance(self, sweep_id: str) -> bool:
        """Return True when nothing more is to be done for this sweep."""
        look = self._looks.get(sweep_id) or self._begin(sweep_id)
        if look is None:
            return True
        self._looks[sweep_id] = look
        for run in look.sweep.runs[len(look.ended) : len(look.ended) + _READS_AT_ONCE]:
            manifest = self._latest(run)
            if manifest is None:
                return False
            error = manifest.error.code if manifest.error else None
            look.ended.append(
                RunSummary(
                    run_id=run.run_id, generation=manifest.generation, status=manifest.status, error=error
                )
            )
        if len(look.ended) < len(look.sweep.runs):
            return False
        self._write(look)
        return True

    def _begin(self, sweep_id: str) -> _Look | None:
        data = self._store.read_bytes(sweep_key(sweep_id), limit_bytes=limits.SWEEP_BYTES)
        if data is None:
            log.warning("sweep %s is not in this store; no summary", sweep_id)
            return None
        return _Look(Sweep.model_validate_json(data))

    def _latest(self, run: SweepRun) -> Manifest | None:
        """Return how the generation that the sweep asked for ended, or a later one."""
        found, generation = None, run.generation
        while (manifest := read_manifest(self._store, run.run_id, generation)) is not None:
            found, generation = manifest, generation + 1
        return found

    def _write(self, look: _Look) -> None:
        counts = Counter(run.status for run in look.ended)
        summary = SweepSummary(
            sweep_id=look.sweep.sweep_id,
            succeeded=counts[JobStatus.SUCCEEDED],
            failed=counts[JobStatus.FAILED],
            cancelled=counts[JobStatus.CANCELLED],
            finished_at=utc_now(),
            runs=look.ended,
        )
        self._store.put_bytes(summary_key(look.sweep.sweep_id), summary.model_dump_json().encode())
        log.info("sweep %s: ended, %d of %d succeeded", summary.sweep_id, summary.succeeded, len(look.ended))
