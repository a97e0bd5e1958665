"""Parts of a fleet as processes of a test, and what can be seen of them from outside."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis
from engine_server import wait_until
from fake_pipeline import CHECKPOINT

from broker import keys
from broker.states import read_states
from broker.submit import QueuedRun, submit_runs
from queue_schemas.events import JobStatus
from queue_schemas.jobs import JOB_ADAPTER
from queue_schemas.results import Manifest
from queue_schemas.runs import Priority, Submission
from storage.layout import manifest_key
from worker.settings import Settings, child_environment

PROGRAM = str(Path(__file__).with_name("worker_program.py"))


@contextmanager
def running(settings: Settings, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a Python program with these settings in its environment; it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, *arguments], env=child_environment(settings), start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def small_fields(**changes: Any) -> dict[str, Any]:
    """The fields of a job that the fake pipeline makes in milliseconds."""
    small = {"width": 64, "height": 32, "frames": 5, "steps": 3, "seed": 7, "checkpoint": CHECKPOINT}
    return {"workflow": "t2va", "prompt": "a red fox", **small, **changes}


@dataclass(frozen=True, slots=True)
class Fleet:
    """A queue, a store and one engine; pullers and janitors are processes that run as long as their block."""

    connection: redis.Redis
    settings: Settings

    @property
    def store(self) -> Path:
        return Path(self.settings.storage_url)

    def with_engine(self, url: str) -> "Fleet":
        """The same queue and store, seen by another node."""
        return replace(self, settings=replace(self.settings, engine_url=url))

    def pulling(self, **times: Any) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        """Run a puller with short times, these replaced."""
        return running(self.settings, PROGRAM, "pull", json.dumps(times))

    def watched(self, **times: Any) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        """Run a janitor with short times, these replaced."""
        return running(self.settings, PROGRAM, "janitor", json.dumps(times))

    def command(self, name: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        """Run `h3-worker NAME`, with real times."""
        return running(self.settings, "-m", "worker.cli", name)

    def submit(
        self,
        *,
        needs: tuple[str, ...] = (),
        priority: Priority = Priority.NORMAL,
        sweep_id: str | None = None,
        run_id: str | None = None,
        **fields: Any,
    ) -> str:
        """Queue a small job and return the id of its run, that of the job unless it is given."""
        job = JOB_ADAPTER.validate_python(small_fields(**fields))
        run = QueuedRun(
            run_id=run_id or job.job_id,
            generation=1,
            job=job.model_dump(mode="json"),
            submission=Submission(sweep_id=sweep_id, priority=priority),
            needs=needs,
        )
        submit_runs(self.connection, [run])
        return run.run_id

    def status(self, run_id: str) -> JobStatus | None:
        return read_states(self.connection, [f"{run_id}-1"])[0].status

    def wait(self, run_id: str, status: JobStatus = JobStatus.SUCCEEDED, *, seconds: float = 20.0) -> None:
        """Wait until the queue says so of a run."""
        wait_until(lambda: self.status(run_id) is status, what=f"{run_id} becomes {status}", seconds=seconds)

    def attempts_used(self, run_id: str) -> int:
        return int(self.connection.hget(keys.entry_key(f"{run_id}-1"), "attempts_used") or 0)

    def manifest(self, run_id: str) -> Manifest:
        return Manifest.model_validate_json((self.store / manifest_key(run_id, 1)).read_bytes())

    def has_manifest(self, run_id: str) -> bool:
        return (self.store / manifest_key(run_id, 1)).exists()


def job_process_of(puller: "subprocess.Popen[bytes]") -> int:
    (child,) = children_of(puller.pid)
    return child


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
