"""The one slot before the GPU: who may prepare the next job, and from when on.

A puller reserves it, claims a job, confirms with the job's id, keeps it while it prepares, and presents it
with the job. The slot opens when the running job has less left than preparation usually takes here: earlier,
a puller would sit on a job that another node could start; later, the GPU would wait. Knows no HTTP and no
threads: the engine calls it under its lock. Times are seconds of one monotonic clock.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from worker.errors import ReservationLostError, SlotClosedError

CLAIM_SECONDS: Final = 2.0
"""How long a reservation waits for a claim."""
BEAT_SECONDS: Final = 15.0
"""How long a confirmed one lives without being renewed: a job process that died frees it so soon."""
KEEP_SECONDS: Final = 120.0
"""How long a confirmed one lives at most: then another job may have the slot."""
FIRST_PREPARATION_SECONDS: Final = 30.0
"""Assumed until the first preparation was measured."""
MARGIN_SECONDS: Final = 1.0
"""What claim, fork and the pullers' polling take before a preparation begins."""
_REMEMBERED: Final = 16


@dataclass(slots=True)
class _Holder:
    token: str
    until: float
    run_id: str | None = None
    confirmed_at: float | None = None


class NextSlot:
    """At most one reservation, and how long preparations took."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._holder: _Holder | None = None
        self._preparations: deque[float] = deque(maxlen=_REMEMBERED)
        self._decodings: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def held(self) -> bool:
        """Whether somebody holds the slot now."""
        if self._holder is not None and self._clock() >= self._holder.until:
            self._holder = None
        return self._holder is not None

    @property
    def preparation_seconds(self) -> float:
        """How long before the running job's end the next one should be claimed.

        The longest of the recent preparations, not their mean: a GPU that waits costs more than a claim that
        came a little early.
        """
        if not self._preparations:
            return FIRST_PREPARATION_SECONDS
        return max(self._preparations) + max(self._decodings, default=0.0) + MARGIN_SECONDS

    def note_decoding(self, seconds: float) -> None:
        """Remember what a job's files took after it was presented; without any there is nothing to note."""
        self._decodings.append(seconds)

    def reserve(self, *, remaining_seconds: float | None) -> tuple[str, float]:
        """Return a new token and its lifetime, if the running job has little enough left (None: unknown).

        Raises SlotClosedError.
        """
        if self.held:
            raise SlotClosedError("another puller holds the next slot")
        if remaining_seconds is None or remaining_seconds > self.preparation_seconds:
            raise SlotClosedError("the running job has more left than a preparation takes")
        token = secrets.token_hex(16)
        self._holder = _Holder(token, self._clock() + CLAIM_SECONDS)
        return token, CLAIM_SECONDS

    def confirm(self, token: str, run_id: str) -> float:
        """Tie the reservation to a claimed run; return its new lifetime. Raises ReservationLostError."""
        holder = self._holder_of(token)
        if holder.confirmed_at is None:
            holder.run_id, holder.confirmed_at = run_id, self._clock()
        return self._extend(holder)

    def renew(self, token: str) -> float:
        """Return the new lifetime of a confirmed reservation. Raises ReservationLostError."""
        holder = self._holder_of(token)
        if holder.confirmed_at is None:
            raise ReservationLostError("this reservation was not confirmed with a run yet")
        return self._extend(holder)

    def release(self, token: str) -> None:
        """Give it back; nothing happens where it is gone already."""
        if self.held and self._holder is not None and self._holder.token == token:
            self._holder = None

    def present(self, token: str) -> None:
        """Use it up, with the prepared job in hand. Raises ReservationLostError."""
        holder = self._holder_of(token)
        if holder.confirmed_at is not None:
            self._preparations.append(self._clock() - holder.confirmed_at)
        self._holder = None

    def _holder_of(self, token: str) -> _Holder:
        if not self.held or self._holder is None or self._holder.token != token:
            raise ReservationLostError(
                "the engine no longer keeps this slot: the reservation ran out, or the engine started anew"
            )
        return self._holder

    def _extend(self, holder: _Holder) -> float:
        assert holder.confirmed_at is not None
        now = self._clock()
        holder.until = min(now + BEAT_SECONDS, holder.confirmed_at + KEEP_SECONDS)
        return max(0.0, holder.until - now)
