"""Parts of a fleet as processes of a test, and what can be seen of them from outside."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

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


def short(kind: str, **times: Any) -> tuple[str, ...]:
    """Arguments of a puller or janitor with short times."""
    return (PROGRAM, kind, json.dumps(times))


def submit(
    connection: redis.Redis,
    fields: dict[str, Any],
    *,
    needs: tuple[str, ...] = (),
    priority: Priority = Priority.NORMAL,
    sweep_id: str | None = None,
) -> str:
    """Queue a job and return the id of its run."""
    job = JOB_ADAPTER.validate_python(fields)
    run = QueuedRun(
        run_id=job.job_id,
        generation=1,
        job=job.model_dump(mode="json"),
        submission=Submission(sweep_id=sweep_id, priority=priority),
        needs=needs,
    )
    submit_runs(connection, [run])
    return run.run_id


def status_of(connection: redis.Redis, run_id: str) -> JobStatus | None:
    return read_states(connection, [f"{run_id}-1"])[0].status


def manifest_of(store: Path, run_id: str) -> Manifest:
    return Manifest.model_validate_json((store / manifest_key(run_id, 1)).read_bytes())


def has_manifest(store: Path, run_id: str) -> bool:
    return (store / manifest_key(run_id, 1)).exists()


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
