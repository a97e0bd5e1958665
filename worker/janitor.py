"""The janitor: finds what died and sees that it goes on. Several may run in a fleet; one leads.

It works on leases, lists and manifests only: no job code, no rq classes, nothing that an entry could break.
A new leader, and one that found Redis back again, waits two beats before it takes a lease that ran out: its
holder was cut off as well, and comes first.
"""

import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

import redis

from broker.claim import park
from broker.connection import queue_errors
from broker.errors import QueueEntryError, QueueUnavailableError
from broker.lease import Lease
from broker.patience import AWAY
from broker.recovery import (
    Expired,
    begin_round,
    expired_leases,
    forget_dead,
    lead,
    list_due,
    resign,
    seize,
)
from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError
from storage.base import ArtifactStore
from storage.errors import StorageError
from worker.ending import FailedAttempt, end_failed_attempt
from worker.leasing import LeaseTimes
from worker.summaries import Summaries
from worker.turns import decides_by_itself, fleet_store_id, open_fleet_store

log = logging.getLogger(__name__)

ABANDONED_SECONDS: Final = 86_400.0
"""Far longer than an upload takes: one that is removed in its middle fails, and is repeated."""
CLEAN_EVERY_SECONDS: Final = 86_400.0
AWAY_EVERY_SECONDS: Final = 30.0
"""How often an outage of Redis is told of."""
_LOCK_TICKS = 3
_DIED = JobError(
    code=ErrorCode.INTERNAL,
    message="the worker died in the middle of this job: its lease ran out",
    retryable=True,
)


class Janitor:
    """One fleet's recovery, as long as this process leads."""

    def __init__(
        self,
        connection: redis.Redis,
        store: ArtifactStore,
        *,
        fleet: str,
        times: LeaseTimes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection, self._store, self._fleet, self._times = connection, store, fleet, times
        self._clock = clock
        self._token = secrets.token_hex(16)
        self._summaries = Summaries(connection, store, fleet=fleet, every_seconds=times.tick_seconds)
        self._settled_at: float | None = None
        """From when on leases that ran out may be taken; None while another janitor leads."""
        self._next_tick = 0.0
        self._tell_away_at = float("-inf")

    def step(self) -> None:
        """Do what is due now; cheap when nothing is. A Redis that is away is waited for."""
        try:
            if self._leads():
                self._work()
        except (*AWAY, QueueUnavailableError) as error:
            if self._clock() >= self._tell_away_at:
                log.warning("Redis is away (%s)", type(error).__name__)
                self._tell_away_at = self._clock() + AWAY_EVERY_SECONDS
            self._settled_at = None
        else:
            self._tell_away_at = float("-inf")

    def close(self) -> None:
        """Let another lead at once."""
        try:
            resign(self._connection, fleet=self._fleet, token=self._token)
        except AWAY:
            return  # the lock runs out by itself

    def _leads(self) -> bool:
        seconds = _LOCK_TICKS * self._times.tick_seconds
        fresh = lead(self._connection, fleet=self._fleet, token=self._token, seconds=seconds)
        if fresh is None:
            self._settled_at = None
            return False
        if fresh or self._settled_at is None:
            self._settled_at = self._clock() + 2 * self._times.beat_seconds
            log.info("leading the fleet %s", self._fleet)
        return True

    def _work(self) -> None:
        list_due(self._connection, fleet=self._fleet)
        now = self._clock()
        if now < self._next_tick:
            return
        self._next_tick = now + self._times.tick_seconds
        if self._settled_at is not None and now >= self._settled_at:
            for expired in expired_leases(self._connection, fleet=self._fleet):
                self._recover(expired)
        self._summaries.advance()
        forget_dead(self._connection, fleet=self._fleet)
        if begin_round(self._connection, "clean", fleet=self._fleet, every_seconds=CLEAN_EVERY_SECONDS):
            # In a thread: a walk through a large store takes longer than this janitor's lock lives.
            threading.Thread(target=_clean, args=(self._store,), name="clean", daemon=True).start()

    def _recover(self, expired: Expired) -> None:
        execution = f"janitor-{secrets.token_hex(8)}"
        lease = seize(
            self._connection,
            expired,
            fleet=self._fleet,
            token=self._token,
            execution=execution,
            seconds=self._times.lease_seconds,
        )
        if lease is None:
            return
        log.warning("entry %s: its lease ran out", lease.entry)
        try:
            end_failed_attempt(
                self._connection,
                FailedAttempt(lease=lease, error=_DIED, files={}),
                store=self._store,
                fleet=self._fleet,
                times=self._times,
            )
        except AWAY:
            raise
        except QueueEntryError as error:
            self._park(lease, error)
        except Exception as error:  # one entry must not stop the others; its lease runs out again
            log.error("entry %s: not recovered: %s: %s", lease.entry, type(error).__name__, error)

    def _park(self, lease: Lease, error: Exception) -> None:
        park(self._connection, lease, reason=str(error), fleet=self._fleet)


def _clean(store: ArtifactStore) -> None:
    try:
        removed = store.remove_abandoned(older_than_seconds=ABANDONED_SECONDS)
    except StorageError as error:
        log.warning("unfinished uploads not removed: %s", error)
        return
    if removed:
        log.info("%d unfinished uploads of writers that died were removed", removed)


def run_janitor(
    connection: redis.Redis, *, storage_url: str, fleet: str, times: LeaseTimes | None = None
) -> None:
    """Run one until a signal. Raises QueueUnavailableError, StorageUnavailableError where one refuses it."""
    times = times or LeaseTimes()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    store_id = fleet_store_id(storage_url, connection, fleet=fleet)
    takes_turns = not decides_by_itself(storage_url, store_id=store_id)
    store = open_fleet_store(storage_url, connection, fleet=fleet, store_id=store_id, takes_turns=takes_turns)
    janitor = Janitor(connection, store, fleet=fleet, times=times)
    with queue_errors(connection):
        while not ended.is_set():
            janitor.step()
            ended.wait(min(times.due_seconds, times.tick_seconds))
        janitor.close()
