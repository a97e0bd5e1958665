"""What a puller accepts from the queue: rq's Job and Queue, narrowed.

rq imports whatever function, callback or web hook an entry names, and inflates whatever it holds. Here one
task is allowed, sizes are checked on the server before anything is read, and an entry that cannot be read is
parked in a hash for people instead of ending the worker. Methods that override rq 3.0.0 keep its signatures;
a contract test compares them.
"""

import logging
import zlib
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

import redis
from rq.exceptions import DequeueTimeout, NoSuchJobError
from rq.job import Job
from rq.queue import Queue
from rq.serializers import Serializer
from rq.timeouts import BaseDeathPenalty

from broker import keys
from broker.claim import park
from broker.lease import Lease
from broker.patience import AWAY
from broker.serializer import StrictJson
from queue_schemas import limits
from queue_schemas.tasks import GENERATE_TASK
from worker import tasks
from worker.attempt_log import AttemptLog
from worker.claiming import Claimer
from worker.errors import EntryRefusedError
from worker.slot import Slot

log = logging.getLogger(__name__)

ENTRY_BYTES: Final = 4 * limits.JOB_BYTES
"""All fields of an entry's hash in Redis' memory; `data` alone, inflated, is held to JOB_BYTES."""


class GenerateEntry(Job):
    """An rq job that can only be our task, of bounded size, without callbacks, hooks or repeats."""

    context: ClassVar[tasks.TaskContext | None] = None
    """Set on a subclass, once per puller, before it forks; so is `claimer`."""
    claimer: ClassVar[Claimer | None] = None
    lease: Lease | None = None
    """Set by the claim."""
    slot: Slot | None = None
    """The engine's next slot, reserved for this job."""
    attempt_log: AttemptLog | None = None
    """Open from before the fork until the job process has ended."""
    began: bool = False
    """Whether the task was called, so that the entry is one of ours."""

    @property
    def func(self) -> Callable[..., Any]:
        if self.func_name != GENERATE_TASK or self.instance is not None or self.args:
            raise EntryRefusedError(f"this worker runs {GENERATE_TASK} only, not {self.func_name!r:.100}")
        context, connection, lease = self.context, self.connection, self.lease
        assert context is not None, "make_puller sets it"
        if lease is None:
            raise EntryRefusedError(f"entry {self.id} was not claimed")
        run = _read_arguments(self.kwargs, entry=self.id)

        def call(**_: Any) -> dict[str, Any]:
            self.began = True
            return tasks.generate(
                run,
                context=context,
                connection=connection,
                lease=lease,
                slot=self.slot,
                attempt_log=self.attempt_log,
            )

        return call

    @property
    def success_callback(self) -> None:
        """Ignored, as the other callbacks are: an entry must not name code to run."""

    @property
    def failure_callback(self) -> None:
        """Ignored."""

    @property
    def stopped_callback(self) -> None:
        """Ignored."""

    def refresh(self) -> None:
        _check_size(self.connection, self.key)
        super().refresh()  # type: ignore[no-untyped-call]  # rq's has no annotations

    def restore(self, raw_data: dict[Any, Any]) -> Any:
        _check_inflated(raw_data.get(b"data", b""))
        restored = super().restore(raw_data)
        self.webhooks = []  # rq would call any address that an entry names
        self.repeats_left = self.retries_left = None
        return restored


class FleetQueue(Queue):
    """One of the fleet's queues; claiming looks at all of them, whichever are passed."""

    job_class = GenerateEntry

    @classmethod
    def dequeue_any(  # noqa: PLR0917 - rq's own signature
        cls,
        queues: Iterable[Queue],
        timeout: int | None,
        connection: redis.Redis,
        job_class: type[Job] | None = None,
        serializer: Serializer | str | None = None,
        death_penalty_class: type[BaseDeathPenalty] | None = None,
    ) -> tuple[Job, Queue] | None:
        """Claim an entry that can be read; rq's DequeueTimeout after `timeout` seconds without one."""
        entry_class = job_class or cls.job_class
        assert issubclass(entry_class, GenerateEntry)
        claimer = entry_class.claimer
        assert claimer is not None, "make_puller sets it"
        while True:
            found = claimer.next(timeout)
            if found is None:
                if timeout is None:
                    return None
                raise DequeueTimeout(timeout, [queue.key for queue in queues])
            lease, slot = found
            try:
                entry: Any = entry_class.fetch(lease.entry, connection=connection, serializer=StrictJson)
            except AWAY:
                raise
            except Exception as error:  # one bad entry must not stop the others
                reason = f"{type(error).__name__}: {error}"
                log.error("queue entry %s cannot be read and was parked: %.300s", lease.entry, reason)
                park(connection, lease, reason=reason, fleet=claimer.fleet)
                claimer.unstarted = None
                claimer.release(slot)
                continue
            entry.lease, entry.slot = lease, slot
            queue = cls(lease.queue, connection=connection, job_class=entry_class, serializer=StrictJson)
            return entry, queue


def _read_arguments(kwargs: Any, *, entry: str) -> tasks.TaskArguments:
    """Return the task's arguments; an entry may speak of nothing but the run that it is named after."""
    names = {"run_id", "generation", "job", "run_key", "submission"}
    if not isinstance(kwargs, dict) or not set(kwargs) <= names:
        raise EntryRefusedError("the entry's arguments are not those of the task")
    run_id, generation, job = (kwargs.get(name) for name in ("run_id", "generation", "job"))
    if not isinstance(run_id, str) or type(generation) is not int or not isinstance(job, dict):
        raise EntryRefusedError("the entry's arguments are not those of the task")
    if keys.entry_id(run_id, generation) != entry:
        raise EntryRefusedError(f"entry {entry} holds another run, {run_id!r:.100}")
    return tasks.TaskArguments(run_id=run_id, generation=generation, job=job)


def _check_size(connection: redis.Redis, key: str) -> None:
    """Ask the server how large an entry is before any of it crosses the wire."""
    size = connection.memory_usage(key, samples=0)  # 0: every field, not an estimate
    if size is None:
        raise NoSuchJobError(f"no entry {key}")
    if size > ENTRY_BYTES:
        raise EntryRefusedError(f"the entry holds {size:,} bytes; at most {ENTRY_BYTES:,} are accepted")


def _check_inflated(data: bytes) -> None:
    """Inflate at most one byte more than is allowed; rq would inflate all of it."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data, limits.JOB_BYTES + 1)
    except zlib.error:
        text = data  # rq reads such data as it is
    if len(text) > limits.JOB_BYTES:
        raise EntryRefusedError(f"the entry inflates to more than {limits.JOB_BYTES:,} bytes")
