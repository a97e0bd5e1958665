"""Put runs into the queue: one server-side script checks for doubles, writes the entry and lists it.

A run that is queued or running is joined. An entry that has ended, or whose worker let its lease run out, is
replaced: whoever submits has looked for a manifest in the store first, and the worker looks again before it
generates, so nothing is made twice.
Knows nothing about storage, sweeps or priorities.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import redis
from rq.utils import now, utcformat

from broker import keys
from broker.connection import queue_errors
from broker.errors import QueueEntryError
from broker.serializer import StrictJson
from queue_schemas import limits
from queue_schemas.environment import DEFAULT_FLEET
from queue_schemas.tasks import GENERATE_TASK

JOB_TIMEOUT_SECONDS: Final = 6 * 3600
"""An outer bound only; the engine's own checks end a job that stalls."""
RESULT_TTL_SECONDS: Final = 7 * 86_400
FAILURE_TTL_SECONDS: Final = 30 * 86_400
QUEUED_TIME_FIELD: Final = "queued_time"
"""Field of the entry: Redis TIME in seconds when it was listed, for `queue_wait`."""
_BATCH: Final = 200  # entries per script call: a call of 500 holds the server for about 10 ms

_JOINED, _QUEUED, _FOREIGN = 0, 1, 2
_SCRIPT: Final = """
-- KEYS: queue, queues, leases, finished, failed, canceled; then per entry: hash, results, progress
-- ARGV: origin, date, timeout, result_ttl, failure_ttl; then per entry: id, data, description
local ended = {finished = true, failed = true, stopped = true, canceled = true}
local t = redis.call('TIME')
local time = t[1] .. '.' .. string.format('%06d', t[2])
local live = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], t[1], '+inf')) do
  live[string.match(member, '^[^:]*')] = true
end
local outcomes = {}
for i = 0, (#KEYS - 6) / 3 - 1 do
  local k, a = 6 + i * 3, 5 + i * 3
  local kind = redis.call('TYPE', KEYS[k + 1])['ok']
  local status, origin = false, false
  if kind == 'hash' then
    status, origin = unpack(redis.call('HMGET', KEYS[k + 1], 'status', 'origin'))
  end
  local abandoned = status == 'started' and not live[ARGV[a + 1]]
  if status and not ended[status] and not abandoned then
    outcomes[i + 1] = (origin and origin ~= ARGV[1]) and 2 or 0
  else
    redis.call('DEL', KEYS[k + 1], KEYS[k + 2], KEYS[k + 3])
    for registry = 4, 6 do redis.call('ZREM', KEYS[registry], ARGV[a + 1]) end
    redis.call('HSET', KEYS[k + 1], 'status', 'queued', 'origin', ARGV[1],
      'created_at', ARGV[2], 'enqueued_at', ARGV[2], 'timeout', ARGV[3], 'result_ttl', ARGV[4],
      'failure_ttl', ARGV[5], 'data', ARGV[a + 2], 'description', ARGV[a + 3], 'queued_time', time)
    redis.call('RPUSH', KEYS[1], ARGV[a + 1])
    outcomes[i + 1] = 1
  end
end
redis.call('SADD', KEYS[2], KEYS[1])
return outcomes
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedRun:
    """One generation of a run, as it is submitted."""

    run_id: str
    generation: int
    job: Mapping[str, Any]
    """The job's fields as JSON values (`job.model_dump(mode="json")`)."""

    @property
    def entry_id(self) -> str:
        return keys.entry_id(self.run_id, self.generation)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOutcome:
    """What became of one submitted run."""

    run_id: str
    generation: int
    entry_id: str
    joined: bool
    """True when it was already queued or running."""


def submit_runs(
    connection: redis.Redis, runs: Sequence[QueuedRun], *, fleet: str = DEFAULT_FLEET
) -> list[SubmitOutcome]:
    """Queue every run that is not already queued or running, in order; all are checked before the first.

    Raises QueueEntryError for an entry that cannot be queued, QueueUnavailableError when Redis is away (what
    was queued before stays, and submitting again joins it).
    """
    payloads = [_payload(run) for run in runs]
    script = connection.register_script(_SCRIPT)
    codes: list[int] = []
    with queue_errors(connection):
        for start in range(0, len(runs), _BATCH):
            batch = slice(start, start + _BATCH)
            codes += script(
                keys=list(_script_keys(runs[batch], fleet=fleet)),
                args=list(_script_args(runs[batch], payloads[batch], fleet=fleet)),
            )
    return [_outcome(run, code, fleet=fleet) for run, code in zip(runs, codes, strict=True)]


def _payload(run: QueuedRun) -> bytes:
    """Return the compressed call: rq's `[function, instance, args, kwargs]`."""
    kwargs = {"run_id": run.run_id, "generation": run.generation, "job": dict(run.job)}
    try:
        text = StrictJson.dumps([GENERATE_TASK, None, [], kwargs])
    except (TypeError, ValueError) as error:
        raise QueueEntryError(f"run {run.run_id}: the job is not plain JSON ({error})") from None
    if len(text) > limits.JOB_BYTES:
        raise QueueEntryError(
            f"run {run.run_id}: {len(text):,} bytes of JSON; at most {limits.JOB_BYTES:,} are accepted"
        )
    return zlib.compress(text)


def _script_keys(runs: Sequence[QueuedRun], *, fleet: str) -> Iterator[str]:
    yield from (keys.queue_key(fleet), keys.QUEUES_KEY, keys.leases_key(fleet), *keys.registry_keys(fleet))
    for run in runs:
        entry = run.entry_id
        yield from (keys.entry_key(entry), keys.results_key(entry), keys.progress_key(fleet, entry))


def _script_args(
    runs: Sequence[QueuedRun], payloads: Sequence[bytes], *, fleet: str
) -> Iterator[str | bytes | int]:
    yield from (keys.queue_name(fleet), utcformat(now()))
    yield from (JOB_TIMEOUT_SECONDS, RESULT_TTL_SECONDS, FAILURE_TTL_SECONDS)
    for run, payload in zip(runs, payloads, strict=True):
        # rq logs the description and would build it from the arguments, prompt included.
        yield from (run.entry_id, payload, f"generate {run.run_id}")


def _outcome(run: QueuedRun, code: int, *, fleet: str) -> SubmitOutcome:
    if code == _FOREIGN:
        raise QueueEntryError(
            f"run {run.run_id} is in the queue of another fleet on the same Redis, not of {fleet!r}; "
            "wait for it, or give each fleet its own Redis database"
        )
    return SubmitOutcome(
        run_id=run.run_id, generation=run.generation, entry_id=run.entry_id, joined=code == _JOINED
    )
