"""What a janitor does in Redis: lead, find leases that ran out, take them over, list again what is due."""

import re
from dataclasses import dataclass
from typing import Final

import redis

from broker import keys
from broker.lease import Lease
from broker.overview import registered_queues

_BATCH: Final = 100
_MEMBER = re.compile(rb"[A-Za-z0-9_-]{1,200}:[A-Za-z0-9_-]{1,100}")

_LEAD: Final = """
-- KEYS: lock; ARGV: token, milliseconds
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return holder and 2 or 1
"""

_RESIGN: Final = """
-- KEYS: lock; ARGV: token
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""

_DUE: Final = """
-- KEYS: due, wake stream; ARGV: how many, list prefix, entry prefix
local t = redis.call('TIME')
local now = string.format('%.6f', t[1] + t[2] / 1e6)
local moved = 0
for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])) do
  redis.call('ZREM', KEYS[1], entry)
  local key = ARGV[3] .. entry
  if redis.call('TYPE', key)['ok'] == 'hash' then
    local status, origin = unpack(redis.call('HMGET', key, 'status', 'origin'))
    if status == 'scheduled' and origin then
      redis.call('HSET', key, 'status', 'queued', 'queued_time', now)
      redis.call('LPUSH', ARGV[2] .. origin, entry)
      moved = moved + 1
    end
  end
end
if moved > 0 then redis.call('XADD', KEYS[2], 'MAXLEN', 1, '*', 'due', moved) end
return moved
"""

_SEIZE: Final = """
-- KEYS: leases, entry, old execution, attempts, janitors' lock; ARGV: member, new member, seconds, token
if redis.call('GET', KEYS[5]) ~= ARGV[4] then return false end
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
local t = redis.call('TIME')
local now = t[1] + t[2] / 1e6
if not score or tonumber(score) > now then return false end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[3])
if redis.call('TYPE', KEYS[2])['ok'] ~= 'hash' then return false end
local status, lease, used = unpack(redis.call('HMGET', KEYS[2], 'status', 'lease', 'attempts_used'))
if status ~= 'started' or lease ~= ARGV[1] then return false end
redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[3]), ARGV[2])
redis.call('HSET', KEYS[2], 'lease', ARGV[2])
return {redis.pcall('GET', KEYS[4]) or '1', used or '1'}
"""


_FORGET_DEAD: Final = """
-- KEYS: the fleet's workers, all workers, names of nodes; ARGV: beginning of a node card's key, seconds
local forgotten = 0
for _, worker in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local left = redis.call('PTTL', worker)
  if left == -1 then redis.call('EXPIRE', worker, ARGV[2]) end  -- written to by one that woke up and died
  if left == -2 then
    redis.call('SREM', KEYS[1], worker)
    redis.call('SREM', KEYS[2], worker)
    forgotten = forgotten + 1
  end
end
for _, node in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  if redis.call('EXISTS', ARGV[1] .. node) == 0 then
    redis.call('SREM', KEYS[3], node)
    forgotten = forgotten + 1
  end
end
return forgotten
"""
_WORKER_SECONDS: Final = 120


@dataclass(frozen=True, slots=True)
class Expired:
    """A lease that ran out: the queue, and the member as it stands there."""

    queue: str
    member: str


def lead(connection: redis.Redis, *, fleet: str, token: str, seconds: float) -> bool | None:
    """Take or keep the janitors' lock: None when another leads, True when it was taken just now."""
    script = connection.register_script(_LEAD)
    code = script(keys=[keys.leader_key(fleet)], args=[token, int(seconds * 1000)])
    return None if code == 0 else code == 1


def resign(connection: redis.Redis, *, fleet: str, token: str) -> None:
    """Give the lock back, if it is ours."""
    connection.register_script(_RESIGN)(keys=[keys.leader_key(fleet)], args=[token])


def begin_round(connection: redis.Redis, what: str, *, fleet: str, every_seconds: float) -> bool:
    """Say whether a rare act is due, and mark it as begun: once in `every_seconds`, whoever leads then."""
    mark, milliseconds = keys.round_key(fleet, what), int(every_seconds * 1000)
    return bool(connection.set(mark, "1", nx=True, px=milliseconds))


def list_due(connection: redis.Redis, *, fleet: str) -> int:
    """Put every entry whose next attempt is due at the head of its queue; return how many."""
    script = connection.register_script(_DUE)
    arguments: list[int | str] = [_BATCH, keys.LIST_PREFIX, keys.ENTRY_PREFIX]
    return int(script(keys=[keys.due_key(fleet), keys.wake_key(fleet)], args=arguments))


def forget_dead(connection: redis.Redis, *, fleet: str) -> int:
    """Take pullers and nodes that were killed off the lists that outlive their own keys; return how many."""
    script = connection.register_script(_FORGET_DEAD)
    lists = [keys.workers_key(fleet), keys.WORKERS_KEY, keys.nodes_key(fleet)]
    return int(script(keys=lists, args=[keys.node_key(fleet, ""), _WORKER_SECONDS]))


def expired_leases(connection: redis.Redis, *, fleet: str) -> list[Expired]:
    """Return leases that ran out, at most a hundred of each queue; what is no lease is swept away."""
    queues = registered_queues(connection, fleet=fleet)
    seconds, _ = connection.time()
    with connection.pipeline(transaction=False) as pipeline:
        for queue in queues:
            pipeline.zrangebyscore(keys.leases_key(queue.name), "-inf", seconds, start=0, num=_BATCH)
        answers = pipeline.execute()
    found = []
    for queue, members in zip(queues, answers, strict=True):
        for raw in members:
            if _MEMBER.fullmatch(raw):
                found.append(Expired(queue.name, raw.decode()))
            else:  # no lease of ours, and nothing that an entry could be found by
                connection.zrem(keys.leases_key(queue.name), raw)
    return found


def seize(
    connection: redis.Redis, expired: Expired, *, fleet: str, token: str, execution: str, seconds: float
) -> Lease | None:
    """Take over a lease that ran out, so that its holder can write nothing any more.

    None when there was nothing to take over: renewed meanwhile, or no entry that runs (then it is gone). None
    as well for one who leads no more: where the server stood still for longer than the janitors' lock lives,
    the holders of leases stood still with it, and come first.
    """
    entry = expired.member.partition(":")[0]
    taken = Lease(queue=expired.queue, entry=entry, execution=execution, number=1, used=1)
    answer = connection.register_script(_SEIZE)(
        keys=[
            keys.leases_key(expired.queue),
            keys.entry_key(entry),
            keys.execution_key(expired.member),
            keys.attempts_key(fleet, entry),
            keys.leader_key(fleet),
        ],
        args=[expired.member, taken.member, seconds, token],
    )
    if answer is None:
        return None
    number, used = (_count(value) for value in answer)
    return Lease(queue=expired.queue, entry=entry, execution=execution, number=number, used=used)


def _count(value: object) -> int:
    return int(value) if isinstance(value, bytes) and value.isdigit() else 1
