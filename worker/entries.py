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
from rq.exceptions import NoSuchJobError
from rq.job import Job
from rq.queue import Queue
from rq.serializers import Serializer
from rq.timeouts import BaseDeathPenalty
from rq.utils import as_text

from broker import keys
from queue_schemas import limits
from queue_schemas.tasks import GENERATE_TASK
from worker import tasks
from worker.errors import EntryRefusedError

log = logging.getLogger(__name__)

ENTRY_BYTES: Final = 4 * limits.JOB_BYTES
"""All fields of an entry's hash in Redis' memory; `data` alone, inflated, is held to JOB_BYTES."""


class GenerateEntry(Job):
    """An rq job that can only be our task, of bounded size, without callbacks, hooks or repeats."""

    context: ClassVar[tasks.TaskContext | None] = None
    """Set on a subclass, once per puller, before it forks."""

    @property
    def func(self) -> Callable[..., Any]:
        if self.func_name != GENERATE_TASK or self.instance is not None:
            raise EntryRefusedError(f"this worker runs {GENERATE_TASK} only, not {self.func_name!r:.100}")
        context, connection = self.context, self.connection
        assert context is not None, "make_puller sets it"

        def call(*, run_id: str, generation: int, job: dict[str, Any]) -> dict[str, Any]:
            return tasks.generate(
                run_id=run_id, generation=generation, job=job, context=context, connection=connection
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
        self.repeats_left = None
        return restored


class FleetQueue(Queue):
    """The fleet's queue; claiming from it parks what cannot be read."""

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
        """Claim the oldest readable entry; rq's DequeueTimeout after `timeout` seconds without one."""
        (queue,) = queues  # several queues would fall back to rq's BLPOP, which loses entries on a crash
        while True:
            popped = cls.lmove(connection, queue.key, timeout)
            if popped is None:
                return None
            raw_id = popped[1]
            try:
                found = cls._fetch_dequeued_job(
                    connection,
                    queue.key,
                    keys.check_entry_id(as_text(raw_id)),
                    job_class=job_class,
                    serializer=serializer,
                    death_penalty_class=death_penalty_class,
                )
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                raise
            except Exception as error:  # one bad entry must not stop the others
                park(connection, raw_id, fleet=queue.name, reason=f"{type(error).__name__}: {error}")
                continue
            if found is not None:
                return found
            connection.lrem(keys.parked_key(queue.name), 1, as_text(raw_id))  # its hash has expired


def park(connection: redis.Redis, raw_id: bytes, *, fleet: str, reason: str) -> None:
    """Move a claimed id to the poison hash, where `reason` tells a person what was wrong with it."""
    log.error("queue entry %.100r cannot be read and was parked: %.300s", raw_id, reason)
    with connection.pipeline(transaction=True) as pipeline:
        pipeline.hset(keys.poison_key(fleet), items=[raw_id[:200], reason[:500]])
        pipeline.lrem(keys.parked_key(fleet), 1, raw_id)  # type: ignore[arg-type]  # ids are bytes
        pipeline.execute()


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
