"""The lease of a running entry: who holds it, renewing it, losing it, ending it.

A lease is a member `<entry>:<execution>` of rq's work-in-progress set, scored by when it runs out. Everything
that changes an entry names its member, inside one script that does nothing when the member is gone: a worker
that was frozen past its lease can write nothing. Only the janitor removes a lease that ran out, so its holder
may renew it as long as nobody did. All times are the server's own.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import redis

from broker import keys
from broker.letters import DeadLetter
from broker.submit import FAILURE_TTL_SECONDS, RESULT_TTL_SECONDS
from queue_schemas.events import JobStatus

_DEAD_KEPT: Final = 1_000
_RQ_STATUS: Final = {
    JobStatus.SUCCEEDED: "finished",
    JobStatus.FAILED: "failed",
    JobStatus.CANCELLED: "canceled",
}

_RENEW: Final = """
-- KEYS: leases; ARGV: member, seconds
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local t = redis.call('TIME')
redis.call('ZADD', KEYS[1], string.format('%.6f', t[1] + t[2] / 1e6 + ARGV[2]), ARGV[1])
return 1
"""

_SETTLE: Final = """
-- KEYS: leases, entry, execution, dead list; ARGV: member, status, ttl, dead letter or '', how many to keep
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('DEL', KEYS[3])
if redis.call('TYPE', KEYS[2])['ok'] == 'hash' then
  redis.call('HSET', KEYS[2], 'status', ARGV[2])
  redis.call('EXPIRE', KEYS[2], ARGV[3])
end
if ARGV[4] ~= '' then
  redis.call('RPUSH', KEYS[4], ARGV[4])
  redis.call('LTRIM', KEYS[4], -ARGV[5], -1)
end
return 1
"""

_REQUEUE: Final = """
-- KEYS: leases, entry, execution, list, due, cancel flag, wake stream
-- ARGV: member, entry, seconds of delay, 1 when the attempt does not count
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
if redis.call('EXISTS', KEYS[6]) == 1 then return 2 end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[3])
if redis.call('TYPE', KEYS[2])['ok'] ~= 'hash' then return 1 end
if ARGV[4] == '1' then redis.call('HINCRBY', KEYS[2], 'attempts_used', -1) end
redis.call('HDEL', KEYS[2], 'lease', 'worker_name')
local t = redis.call('TIME')
local now = t[1] + t[2] / 1e6
if tonumber(ARGV[3]) > 0 then
  redis.call('HSET', KEYS[2], 'status', 'scheduled')
  redis.call('ZADD', KEYS[5], string.format('%.6f', now + ARGV[3]), ARGV[2])
else
  redis.call('HSET', KEYS[2], 'status', 'queued', 'queued_time', string.format('%.6f', now))
  redis.call('LPUSH', KEYS[4], ARGV[2])
  redis.call('XADD', KEYS[7], 'MAXLEN', 1, '*', 'entry', ARGV[2])
end
return 1
"""


class Requeued(StrEnum):
    """What became of an attempt to queue an entry again."""

    DONE = "done"
    LOST = "lost"
    """The lease is somebody else's by now; nothing was changed."""
    CANCELLED = "cancelled"
    """Someone wants the run to stop; nothing was changed, the lease is still held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One attempt at one entry, as the claim (or the janitor) got it."""

    queue: str
    entry: str
    execution: str
    number: int
    """Counts every claim of this entry; names the attempt's folder."""
    used: int
    """Attempts used so far, this one included."""
    wait_seconds: float | None = None
    """From being listed to being claimed."""

    @property
    def member(self) -> str:
        return f"{self.entry}:{self.execution}"


def renew(connection: redis.Redis, lease: Lease, *, seconds: float) -> bool:
    """Prolong the lease; False when it was taken away. Raises redis-py's errors, as all here do."""
    script = connection.register_script(_RENEW)
    return bool(script(keys=[keys.leases_key(lease.queue)], args=[lease.member, seconds]))


def settle(
    connection: redis.Redis,
    lease: Lease,
    *,
    status: JobStatus,
    fleet: str,
    dead_letter: DeadLetter | None = None,
) -> bool:
    """End the entry with `status` and give the lease back; False, with nothing changed, when it was lost.

    With a letter the entry is listed among those that failed at their last attempt.
    """
    letter = dead_letter.dumps() if dead_letter else ""
    ttl = RESULT_TTL_SECONDS if status is JobStatus.SUCCEEDED else FAILURE_TTL_SECONDS
    script = connection.register_script(_SETTLE)
    settled = script(
        keys=[*_held_keys(lease), keys.dead_key(fleet)],
        args=[lease.member, _RQ_STATUS[status], ttl, letter, _DEAD_KEPT],
    )
    return bool(settled)


def requeue(
    connection: redis.Redis, lease: Lease, *, delay_seconds: float, counts: bool, fleet: str
) -> Requeued:
    """Give the lease back and have the entry tried again, first in its queue or after a delay."""
    script = connection.register_script(_REQUEUE)
    code = script(
        keys=[
            *_held_keys(lease),
            keys.list_key(lease.queue),
            keys.due_key(fleet),
            keys.cancel_key(fleet, lease.entry),
            keys.wake_key(fleet),
        ],
        args=[lease.member, lease.entry, f"{delay_seconds:.3f}", int(not counts)],
    )
    return (Requeued.LOST, Requeued.DONE, Requeued.CANCELLED)[code]


def _held_keys(lease: Lease) -> list[str]:
    return [keys.leases_key(lease.queue), keys.entry_key(lease.entry), keys.execution_key(lease.member)]
