"""Cancel queue entries: one that waits is taken out, one that runs is asked to stop.

The request to a running entry is a key that its job process looks at, so it outlives a Redis restart and a
change of worker. A run that several sweeps want goes on until the last of them lets go, unless forced. Knows
no storage: whoever cancels a waiting run writes its manifest.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import redis

from broker import keys
from broker.connection import queue_errors
from broker.submit import FAILURE_TTL_SECONDS
from queue_schemas.environment import DEFAULT_FLEET

CANCEL_TTL_SECONDS: Final = 7 * 86_400
_BATCH: Final = 200

_SCRIPT: Final = """
-- KEYS: due
-- ARGV: fleet, sweep or '', 1 to force, cancel ttl, entry ttl, list prefix, entry prefix, lease prefix;
--       then the entries
local waiting = {created = true, queued = true, deferred = true, scheduled = true,
  rate_limited = true, ready_to_enqueue = true}
local fleet, sweep, outcomes = ARGV[1], ARGV[2], {}
for a = 9, #ARGV do
  local entry, key = ARGV[a], ARGV[7] .. ARGV[a]
  local status, origin, owner, lease = false, false, false, false
  if redis.call('TYPE', key)['ok'] == 'hash' then
    status, origin, owner, lease = unpack(redis.call('HMGET', key, 'status', 'origin', 'fleet', 'lease'))
  end
  local wants = fleet .. ':wants:' .. entry
  local outcome
  if not status or (owner and owner ~= fleet) then
    outcome = 'unknown'
  elseif status ~= 'started' and not waiting[status] then
    outcome = 'ended'
  else
    if sweep ~= '' then redis.call('SREM', wants, sweep) end
    local others = redis.call('SCARD', wants)
    local allowed = sweep == '' and 1 or 0  -- nobody in particular may end what one sweep wants
    if ARGV[3] ~= '1' and others > allowed then
      outcome = 'kept_for_others'
    elseif status == 'started' and origin and lease and redis.call('ZSCORE', ARGV[8] .. origin, lease) then
      redis.call('SET', fleet .. ':cancel:' .. entry, '1', 'EX', ARGV[4])
      outcome = 'signalled'
    else
      if origin then redis.call('LREM', ARGV[6] .. origin, 1, entry) end
      redis.call('ZREM', KEYS[1], entry)
      redis.call('HSET', key, 'status', 'canceled')
      redis.call('EXPIRE', key, ARGV[5])
      redis.call('DEL', wants)
      outcome = 'removed'
    end
  end
  outcomes[#outcomes + 1] = outcome
end
return outcomes
"""


class CancelOutcome(StrEnum):
    """What became of one entry that was to be cancelled."""

    REMOVED = "removed"
    """It waited; it will not run. Whoever cancelled writes its manifest."""
    SIGNALLED = "signalled"
    """It runs; its job process stops at the next step and writes the manifest."""
    KEPT_FOR_OTHERS = "kept_for_others"
    """Another sweep wants it."""
    ENDED = "ended"
    """It had ended before."""
    UNKNOWN = "unknown"
    """Redis holds no such entry; only storage can say how it ended."""


def cancel_runs(
    connection: redis.Redis,
    entry_ids: Sequence[str],
    *,
    sweep_id: str | None = None,
    force: bool = False,
    fleet: str = DEFAULT_FLEET,
) -> list[CancelOutcome]:
    """Cancel every entry, on behalf of a sweep where one lets go; outcomes in the order asked.

    Cancelling again says the same or `ended`. Raises QueueEntryError, QueueUnavailableError.
    """
    entries = [keys.check_entry_id(entry) for entry in entry_ids]
    script = connection.register_script(_SCRIPT)
    outcomes: list[CancelOutcome] = []
    with queue_errors(connection):
        for start in range(0, len(entries), _BATCH):
            answers = script(
                keys=[keys.due_key(fleet)],
                args=[
                    fleet,
                    sweep_id or "",
                    int(force),
                    CANCEL_TTL_SECONDS,
                    FAILURE_TTL_SECONDS,
                    keys.LIST_PREFIX,
                    keys.ENTRY_PREFIX,
                    keys.LEASES_PREFIX,
                    *entries[start : start + _BATCH],
                ],
            )
            outcomes += [CancelOutcome(answer.decode()) for answer in answers]
    return outcomes


def is_cancelled(connection: redis.Redis, entry: str, *, fleet: str) -> bool:
    """Say whether a running entry was asked to stop. Raises redis-py's errors."""
    return bool(connection.exists(keys.cancel_key(fleet, entry)))
