"""How leases, retries and recovery are timed. One value for a whole fleet; tests make all of it short."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Seconds, but for the counts."""

    lease_seconds: float = 60.0
    """A job whose puller is gone runs again after at most this, one tick of the janitor and the back-off."""
    beat_seconds: float = 10.0
    """How often a puller renews the lease of its job."""
    patience_seconds: float = 600.0
    """How long a job waits for a Redis that is away, before it commits by the store's word alone."""
    storage_seconds: float = 4 * 3600.0
    """How long a job process that has its film holds on to it while the store is away."""
    cancel_poll_seconds: float = 0.5
    max_attempts: int = 3
    max_claims: int = 20
    """From here on an attempt counts, whoever's fault it was: nothing runs for ever."""
    backoff_seconds: float = 2.0
    """Before the second attempt; doubled before each further one."""
    backoff_cap_seconds: float = 60.0
    tick_seconds: float = 10.0
    """How often the leading janitor looks for leases that ran out; its lock lives three of them."""
    due_seconds: float = 1.0
    """How often it lists entries whose next attempt is due."""

    def backoff(self, number: int) -> float:
        """Return the pause after the attempt of this number; jitter keeps lost jobs from returning as one."""
        pause = min(self.backoff_cap_seconds, self.backoff_seconds * 2.0 ** min(number - 1, 16))
        return pause * random.uniform(0.5, 1.5)
