"""Put runs into the queue: one server-side script checks for doubles, writes the entry and lists it.

A run that is queued or running is joined, and its new sweep is added to those that want it. An entry that has
ended is replaced: whoever submits has looked for a manifest in the store first, and the worker looks again
before it generates, so nothing is made twice.
Knows nothing about storage; which sweep a run belongs to is only noted.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import redis
from rq.utils import now, utcformat

from broker import keys
from broker.connection import queue_errors
from broker.errors import QueueEntryError
from broker.refusals import met_foreign_key
from broker.serializer import StrictJson
from queue_schemas import limits
from queue_schemas.environment import DEFAULT_FLEET
from queue_schemas.runs import RunKey, Submission, entry_payload
from queue_schemas.tasks import GENERATE_TASK

JOB_TIMEOUT_SECONDS: Final = 6 * 3600
"""An outer bound only; the engine's own checks end a job that stalls."""
RESULT_TTL_SECONDS: Final = 7 * 86_400
FAILURE_TTL_SECONDS: Final = 30 * 86_400
_BATCH: Final = 200  # entries per script call: a call of 500 holds the server for about 10 ms

_JOINED, _QUEUED, _FOREIGN = 0, 1, 2
_SCRIPT: Final = """
-- KEYS: list, rq's queues, registered queues, wake stream, sweeps
-- ARGV: queue name, its registration, date, timeout, result_ttl, failure_ttl, fleet, entry prefix,
--       lease prefix; then per entry: id, data, description, sweep or ''
local ended = {finished = true, failed = true, stopped = true, canceled = true}
local name, date, fleet = ARGV[1], ARGV[3], ARGV[7]
local t = redis.call('TIME')
local time = t[1] .. '.' .. string.format('%06d', t[2])
local outcomes, sweeps = {}, {}
-- First, because a full server refuses nothing more once a script has written, and never a DEL.
redis.call('SADD', KEYS[2], KEYS[1])
redis.call('HSET', KEYS[3], name, ARGV[2])
for a = 10, #ARGV, 4 do
  local entry, sweep = ARGV[a], ARGV[a + 3]
  local key = ARGV[8] .. entry
  local wants, cancel = fleet .. ':wants:' .. entry, fleet .. ':cancel:' .. entry
  local status, origin, owner, lease = false, false, false, false
  if redis.call('TYPE', key)['ok'] == 'hash' then
    status, origin, owner, lease = unpack(redis.call('HMGET', key, 'status', 'origin', 'fleet', 'lease'))
  end
  local abandoned = status == 'started'
    and not (origin and lease and redis.call('ZSCORE', ARGV[9] .. origin, lease))
  local outcome
  if status and not ended[status] and not abandoned then
    outcome = (owner and owner ~= fleet) and 2 or 0
  else
    redis.call('DEL', key, fleet .. ':progress:' .. entry, wants)
    redis.call('HSET', key, 'status', 'queued', 'origin', name, 'fleet', fleet, 'created_at', date,
      'enqueued_at', date, 'timeout', ARGV[4], 'result_ttl', ARGV[5], 'failure_ttl', ARGV[6],
      'data', ARGV[a + 1], 'description', ARGV[a + 2], 'queued_time', time, 'attempts_used', 0)
    redis.call('RPUSH', KEYS[1], entry)
    outcome = 1
  end
  if outcome ~= 2 then
    redis.call('DEL', cancel)
    if sweep ~= '' then
      redis.call('SADD', wants, sweep)
      redis.call('EXPIRE', wants, ARGV[6])
      sweeps[sweep] = true
    end
  end
  outcomes[#outcomes + 1] = outcome
end
for sweep, _ in pairs(sweeps) do redis.call('ZADD', KEYS[5], 'NX', t[1], sweep) end
redis.call('XADD', KEYS[4], 'MAXLEN', 1, '*', 'queue', name)
return outcomes
"""


@dataclass(frozen=True, kw_only=True)
class QueuedRun:
    """One generation of a run, as it is submitted."""

    run_id: str
    generation: int
    job: Mapping[str, Any]
    """The job's fields as JSON values (`job.model_dump(mode="json")`)."""
    key: RunKey = field(default_factory=RunKey)
    submission: Submission = field(default_factory=Submission)
    needs: Sequence[str] = ()
    """What a node must have (`queue_schemas.runs.needs_of`); without any, every node takes it."""

    @property
    def entry_id(self) -> str:
        return keys.entry_id(self.run_id, self.generation)

    @cached_property
    def payload(self) -> bytes:
        """The compressed call: rq's `[function, instance, args, kwargs]`. Raises QueueEntryError."""
        kwargs = entry_payload(
            self.run_id, self.generation, job=dict(self.job), key=self.key, submission=self.submission
        )
        try:
            text = StrictJson.dumps([GENERATE_TASK, None, [], kwargs])
        except (TypeError, ValueError) as error:
            raise QueueEntryError(f"run {self.run_id}: the job is not plain JSON ({error})") from None
        if len(text) > limits.JOB_BYTES:
            raise QueueEntryError(
                f"run {self.run_id}: {len(text):,} bytes of JSON; at most {limits.JOB_BYTES:,} are accepted"
            )
        return zlib.compress(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitOutcome:
    """What became of one submitted run."""

    run_id: str
    generation: int
    entry_id: str
    joined: bool
    """True when it was already queued or running."""


def check_runs(runs: Sequence[QueuedRun]) -> None:
    """Raise QueueEntryError for what cannot be queued, before anything is written anywhere."""
    for run in runs:
        _ = run.entry_id, run.payload


def submit_runs(
    connection: redis.Redis, runs: Sequence[QueuedRun], *, fleet: str = DEFAULT_FLEET
) -> list[SubmitOutcome]:
    """Queue every run that is not already queued or running, in order; all are checked before the first.

    Raises QueueEntryError for an entry that cannot be queued, QueueUnavailableError when Redis is away (what
    was queued before stays, and submitting again joins it).
    """
    check_runs(runs)
    script = connection.register_script(_SCRIPT)
    codes: dict[int, int] = {}
    with queue_errors(connection):
        for batch in _batches(runs, fleet=fleet):
            try:
                answers = script(
                    keys=_script_keys(runs[batch[0]], fleet=fleet),
                    args=list(_script_args(runs, batch=batch, fleet=fleet)),
                )
            except redis.exceptions.ResponseError as error:
                if not met_foreign_key(error):
                    raise
                raise QueueEntryError(
                    f"a key of the fleet {fleet!r} holds something else; `h3 doctor` or `h3 jobs` names it"
                ) from None
            codes.update(zip(batch, answers, strict=True))
    return [_outcome(run, codes[index], fleet=fleet) for index, run in enumerate(runs)]


def _batches(runs: Sequence[QueuedRun], *, fleet: str) -> Iterator[list[int]]:
    """Yield indices of runs that go into the same queue, in the order given."""
    queues: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for index, run in enumerate(runs):
        queues.setdefault((run.submission.priority, tuple(run.needs)), []).append(index)
    for indices in queues.values():
        yield from (indices[start : start + _BATCH] for start in range(0, len(indices), _BATCH))


def _script_keys(run: QueuedRun, *, fleet: str) -> list[str]:
    queue = keys.queue_key(fleet, run.submission.priority, needs=run.needs)
    return [
        queue,
        keys.QUEUES_KEY,
        keys.registered_key(fleet),
        keys.wake_key(fleet),
        keys.sweeps_key(fleet),
    ]


def _script_args(
    runs: Sequence[QueuedRun], *, batch: Sequence[int], fleet: str
) -> Iterator[str | bytes | int]:
    first = runs[batch[0]]
    yield keys.queue_name(fleet, first.submission.priority, needs=first.needs)
    yield json.dumps({"priority": first.submission.priority, "needs": sorted(first.needs)})
    yield utcformat(now())
    yield from (JOB_TIMEOUT_SECONDS, RESULT_TTL_SECONDS, FAILURE_TTL_SECONDS)
    yield from (fleet, keys.ENTRY_PREFIX, keys.LEASES_PREFIX)
    for index in batch:
        run = runs[index]
        # rq logs the description and would build it from the arguments, prompt included.
        yield from (run.entry_id, run.payload, f"generate {run.run_id}", run.submission.sweep_id or "")


def _outcome(run: QueuedRun, code: int, *, fleet: str) -> SubmitOutcome:
    if code == _FOREIGN:
        raise QueueEntryError(
            f"run {run.run_id} is in the queue of another fleet on the same Redis, not of {fleet!r}; "
            "wait for it, or give each fleet its own Redis database"
        )
    return SubmitOutcome(
        run_id=run.run_id, generation=run.generation, entry_id=run.entry_id, joined=code == _JOINED
    )
