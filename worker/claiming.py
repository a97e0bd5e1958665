"""A puller's claim: wait until something fits this node, reserve the engine's next slot, take the lease.

The order matters: the slot comes first, so that no claimed job waits for an engine while another node has
time; and it is asked for only when something waits, so that an idle fleet is quiet.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

import redis

from broker.claim import Claimant, Idle, claim, peek, wait_for_work
from broker.lease import Lease, requeue
from worker.errors import EngineAnswerError, EngineLostError, EngineStalledError, ReservationLostError
from worker.slot import Slot, SlotDoor

log = logging.getLogger(__name__)

_SLOT_POLL_SECONDS: Final = 0.05
"""First pause while something waits and the slot is closed; it bounds what the queue adds to a job."""
_SLOT_POLL_LAST_SECONDS: Final = 0.25
"""Last pause, of a job that has minutes left or an engine that is gone; the slot opens a second too early."""
_BLOCK_SECONDS: Final = 4.0
"""Longest wait for a message that something was listed; then the queues are looked at anyway."""


class Claimer:
    """Takes leases for one puller; without a door it claims whatever the engine does."""

    def __init__(
        self,
        connection: redis.Redis,
        who: Claimant,
        *,
        door: SlotDoor | None,
        may_claim: Callable[[], bool] = lambda: True,
    ) -> None:
        self._connection, self._who, self._door, self._may_claim = connection, who, door, may_claim
        self.unstarted: Lease | None = None
        """Claimed, and its job process not yet begun: given back when a signal comes in between."""

    @property
    def fleet(self) -> str:
        return self._who.fleet

    def next(self, seconds: float | None) -> tuple[Lease, Slot | None] | None:
        """Return a lease and the slot reserved for it; None when nothing came within `seconds`.

        Without `seconds` nothing is waited for. Raises redis-py's errors.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        pause = _SLOT_POLL_SECONDS
        while True:
            idle = peek(self._connection, self._who)
            if idle is None and self._may_claim():
                found = self._take()
                if found is not None:
                    return found
            left = 0.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return None
            if idle is None:
                time.sleep(min(left, pause))
                pause = min(1.5 * pause, _SLOT_POLL_LAST_SECONDS)
            else:
                pause = _SLOT_POLL_SECONDS
                block = min(left, _BLOCK_SECONDS)
                wait_for_work(self._connection, idle, fleet=self._who.fleet, seconds=block)

    def _take(self) -> tuple[Lease, Slot | None] | None:
        if self._door is None:
            lease = claim(self._connection, self._who)
            if isinstance(lease, Idle):
                return None
            self.unstarted = lease
            return lease, None
        token = self._door.reserve()
        if token is None:
            return None
        lease = claim(self._connection, self._who)
        if isinstance(lease, Idle):  # another puller was quicker
            self._door.release(token)
            return None
        self.unstarted = lease
        try:
            return lease, self._door.confirm(token, run_id=lease.entry)
        except (ReservationLostError, EngineLostError, EngineStalledError, EngineAnswerError) as error:
            log.warning("entry %s: claimed and given back: %s", lease.entry, error)
            requeue(self._connection, lease, delay_seconds=0.0, counts=False, fleet=self._who.fleet)
            self.unstarted = None
            return None

    def renew(self, slot: Slot | None) -> bool:
        """Keep a slot while its job is prepared; False when there is none to keep any more."""
        return self._door is not None and slot is not None and self._door.renew(slot)

    def release(self, slot: Slot | None) -> None:
        """Give back a slot; nothing happens when the job has used it."""
        if self._door is not None and slot is not None:
            self._door.release(slot.token)
