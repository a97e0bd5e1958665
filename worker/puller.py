"""The puller: a forking rq worker that runs one task and never touches CUDA.

It claims an entry, forks a job process for it and watches; the job process does everything else. Both die
with their parent. Methods that override rq 3.0.0 keep its signatures; a contract test compares them. Needs
redis-server 6.2 (BLMOVE).
"""

import logging
import os
import signal
import time
from typing import Any, Final

import redis
from rq.job import Job
from rq.utils import now
from rq.worker import Worker

from broker import keys
from broker.serializer import StrictJson
from worker.entries import FleetQueue, GenerateEntry
from worker.lifeline import die_with_parent
from worker.tasks import TaskContext

log = logging.getLogger(__name__)

BEAT_SECONDS: Final = 10
"""How often the lease of a running entry is renewed; rq's lease is this plus 60 s."""
WORKER_TTL_SECONDS: Final = 60
"""Bounds the blocking claim (less 15 s) and with it the time a dead connection goes unnoticed."""


class Puller(Worker):
    """rq's forking worker, narrowed to this project's one task."""

    queue_class = FleetQueue
    job_class = GenerateEntry
    max_connection_wait_time = 5.0

    def run_maintenance_tasks(self) -> None:
        """Do nothing but say so: rq's own clean-up lets one malformed entry end every worker."""
        self.last_cleaned_at = now()  # type: ignore[assignment]  # rq infers None from its default

    def setup_work_horse_signals(self) -> None:
        """In the job process: as rq does, and die with the puller, which alone renews the lease."""
        super().setup_work_horse_signals()  # type: ignore[no-untyped-call]  # rq's has no annotations
        assert self.pid is not None
        die_with_parent(self.pid)

    def kill_horse(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """Kill the job process, if there is one.

        rq's own kills the worker's process group when there is none (`getpgid(0)`); and a job process that
        has not made its own group yet still shares the worker's.
        """
        pid = self.horse_pid
        if not pid:
            return
        try:
            group = os.getpgid(pid)
            if group == pid:
                os.killpg(group, sig)
            else:
                os.kill(pid, sig)
        except ProcessLookupError:
            self.log.debug("job process %s is gone already", pid)

    def handle_exception(self, job: Job, *exc_info: Any) -> None:
        """Log what ended the job; rq's own puts the arguments, prompt included, into the log record."""
        log.error("entry %s failed: %s: %.500s", job.id, getattr(exc_info[0], "__name__", "?"), exc_info[1])


def make_puller(connection: redis.Redis, *, context: TaskContext, name: str) -> Puller:
    """Return a puller of the fleet's queue; its job processes get `context` by being forked from it."""
    job_class = type("GenerateEntry", (GenerateEntry,), {"context": context})
    queue = FleetQueue(
        keys.queue_name(context.fleet), connection=connection, job_class=job_class, serializer=StrictJson
    )
    return Puller(
        [queue],
        name=f"{name}-{os.getpid()}-{time.time_ns():x}",
        connection=connection,
        job_class=job_class,
        serializer=StrictJson,
        worker_ttl=WORKER_TTL_SECONDS,
        job_monitoring_interval=BEAT_SECONDS,
        log_job_description=False,
    )
