"""Claim an entry: one script finds the oldest of the most urgent that a node can serve, and takes its lease.

Listing, lease, attempt count and status change together, so a worker that dies at any point leaves an
entry that is either still listed or leased: nothing lies in between. What is no entry at all is parked by the
script.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import redis
from rq.utils import as_text

from broker import keys
from broker.lease import Lease

_ATTEMPTS_TTL_SECONDS: Final = 30 * 86_400
_EXECUTION_TTL_SECONDS: Final = 7 * 86_400

_SCRIPT: Final = """
-- KEYS: registered queues, wake stream, parked entries
-- ARGV: offers as JSON, 'peek' or 'claim', execution, lease seconds, worker, fleet, list prefix,
--       entry prefix, lease prefix, execution prefix, attempts ttl, execution ttl
local t = redis.call('TIME')
local now = t[1] + t[2] / 1e6
local rank, offers = {high = 1, normal = 2, low = 3}, {}
for _, offer in ipairs(cjson.decode(ARGV[1])) do offers[offer] = true end

local function fitting()
  local found, fields = {}, redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    local read, queue = pcall(cjson.decode, fields[i + 1])
    if read and type(queue) == 'table' and rank[queue.priority] and type(queue.needs) == 'table' then
      local fits = true
      for _, need in ipairs(queue.needs) do fits = fits and offers[need] end
      if fits then found[#found + 1] = {name = fields[i], rank = rank[queue.priority]} end
    end
  end
  return found
end

local function oldest(queues)
  local best = nil
  for _, queue in ipairs(queues) do
    local entry = redis.pcall('LINDEX', ARGV[7] .. queue.name, 0)
    if type(entry) == 'string' then
      local queued = redis.pcall('HGET', ARGV[8] .. entry, 'queued_time')
      local time = type(queued) == 'string' and tonumber(queued) or 0
      if not best or queue.rank < best.rank or (queue.rank == best.rank and time < best.time) then
        best = {name = queue.name, rank = queue.rank, time = time, entry = entry}
      end
    end
  end
  return best
end

local dropped = {started = true, scheduled = true, finished = true, failed = true, stopped = true,
  canceled = true}
local function take(found)  -- nil: nothing to run; a string: why it is parked; else the claim
  local entry, key = found.entry, ARGV[8] .. found.entry
  if #entry > 200 or not string.match(entry, '^[%w_-]+$') then return 'this is no id of an entry' end
  local kind = redis.call('TYPE', key)['ok']
  if kind == 'none' then return nil end  -- it has expired
  if kind ~= 'hash' then return 'the entry is a ' .. kind .. ', not a hash' end
  local status = redis.call('HGET', key, 'status')
  if dropped[status] then return nil end  -- listed twice
  if status ~= 'queued' then return 'the status of the entry is ' .. string.sub(tostring(status), 1, 40) end
  local attempts = ARGV[6] .. ':attempts:' .. entry
  local used, number = redis.pcall('HINCRBY', key, 'attempts_used', 1), redis.pcall('INCR', attempts)
  if type(used) ~= 'number' or type(number) ~= 'number' then return 'its attempts cannot be counted' end
  redis.call('EXPIRE', attempts, ARGV[11])
  local member = entry .. ':' .. ARGV[3]
  local stamp = string.format('%.6f', now)
  redis.call('ZADD', ARGV[9] .. found.name, string.format('%.6f', now + ARGV[4]), member)
  redis.call('HSET', key, 'status', 'started', 'lease', member, 'origin', found.name, 'worker_name', ARGV[5])
  redis.call('PERSIST', key)
  redis.call('DEL', ARGV[6] .. ':progress:' .. entry)  -- an earlier attempt's
  redis.call('HSET', ARGV[10] .. member, 'id', ARGV[3], 'job_id', entry, 'created_at', stamp,
    'last_heartbeat', stamp, 'worker_name', ARGV[5])
  redis.call('EXPIRE', ARGV[10] .. member, ARGV[12])
  local wait = found.time > 0 and string.format('%.6f', math.max(0, now - found.time)) or ''
  return {found.name, entry, number, used, wait}
end

local queues = fitting()
for _ = 1, 100 do
  local found = oldest(queues)
  if not found then break end
  if ARGV[2] == 'peek' then return {'waiting'} end
  redis.call('LPOP', ARGV[7] .. found.name)
  local taken = take(found)
  if type(taken) == 'table' then return taken end
  if taken then
    redis.call('HSET', KEYS[3], string.sub(found.entry, 1, 200), taken)
    local key = ARGV[8] .. found.entry
    if redis.call('TYPE', key)['ok'] == 'hash' then redis.call('HSET', key, 'status', 'failed') end
  end
end
local last = redis.pcall('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
return {'idle', last[1] and last[1][1] or '0-0'}
"""

_PARK: Final = """
-- KEYS: leases, entry, execution, parked entries; ARGV: member, entry, reason, ttl
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[3])
redis.call('HSET', KEYS[4], ARGV[2], ARGV[3])
if redis.call('TYPE', KEYS[2])['ok'] == 'hash' then
  redis.call('HSET', KEYS[2], 'status', 'failed')
  redis.call('EXPIRE', KEYS[2], ARGV[4])
end
"""
_PARKED_TTL_SECONDS: Final = 7 * 86_400


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing that this node could serve waits; `wake_id` is where the wake stream stood then."""

    wake_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """Who claims: what its node offers, and how long the leases it takes are."""

    fleet: str
    offers: Sequence[str]
    worker: str
    lease_seconds: float


def peek(connection: redis.Redis, who: Claimant) -> Idle | None:
    """Return None when something waits that `claim` would take now."""
    answer = _call(connection, who, act="peek", execution="")
    return Idle(as_text(answer[1])) if as_text(answer[0]) == "idle" else None


def claim(connection: redis.Redis, who: Claimant) -> Lease | Idle:
    """Take the lease of the oldest of the most urgent entries whose needs are offered."""
    execution = secrets.token_hex(16)
    answer = _call(connection, who, act="claim", execution=execution)
    if len(answer) == 2:
        return Idle(as_text(answer[1]))
    queue, entry, number, used, wait = answer
    return Lease(
        queue=as_text(queue),
        entry=as_text(entry),
        execution=execution,
        number=int(number),
        used=int(used),
        wait_seconds=float(wait) if wait else None,
    )


def wait_for_work(connection: redis.Redis, idle: Idle, *, fleet: str, seconds: float) -> None:
    """Block until something was listed after `idle` was seen, or the time is over."""
    connection.xread({keys.wake_key(fleet): idle.wake_id}, block=max(1, int(seconds * 1000)))


def park(connection: redis.Redis, lease: Lease, *, reason: str, fleet: str) -> None:
    """Take a claimed entry that cannot be read out of the way; `reason` tells a person what was wrong."""
    connection.register_script(_PARK)(
        keys=[
            keys.leases_key(lease.queue),
            keys.entry_key(lease.entry),
            keys.execution_key(lease.member),
            keys.poison_key(fleet),
        ],
        args=[lease.member, lease.entry, reason[:500], _PARKED_TTL_SECONDS],
    )


def _call(connection: redis.Redis, who: Claimant, *, act: str, execution: str) -> list[bytes]:
    script = connection.register_script(_SCRIPT)
    answer: list[bytes] = script(
        keys=[keys.registered_key(who.fleet), keys.wake_key(who.fleet), keys.poison_key(who.fleet)],
        args=[
            json.dumps(list(who.offers)),
            act,
            execution,
            who.lease_seconds,
            who.worker,
            who.fleet,
            keys.LIST_PREFIX,
            keys.ENTRY_PREFIX,
            keys.LEASES_PREFIX,
            keys.EXECUTION_PREFIX,
            _ATTEMPTS_TTL_SECONDS,
            _EXECUTION_TTL_SECONDS,
        ],
    )
    return answer
