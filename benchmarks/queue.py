"""What the fleet costs beside the GPU: `python -m benchmarks.queue`.

Ten thousand runs submitted through the client, again, and looked up; ten thousand records collected from a
folder; what queue, puller and service add to one job; how long the GPU idles between two. Starts its own
redis-server and takes about two minutes on two cores. Prints a table, then one JSON line.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import redis

from benchmarks.idle_gap import measure_idle_gap
from benchmarks.timed_engine import CHECKPOINT
from benchmarks.timed_node import TimedNode, timed_node
from broker.connection import connect
from broker.states import read_states
from broker.submit import QueuedRun, submit_runs
from client.client import H3Client
from client.collect import collect_files
from queue_schemas.benchmark import BenchmarkRecord, OutputFile, Seconds
from queue_schemas.events import JobStatus
from queue_schemas.jobs import build_job
from queue_schemas.results import Manifest
from queue_schemas.runs import RunKey, needs_of
from storage.layout import attempt_prefix, manifest_key
from storage.uri import open_store
from worker.children import end_all
from worker.embedded_redis import start_redis

LIMITS: Final[Mapping[str, float]] = {
    "submit_10k_s": 3.0,
    "resubmit_10k_s": 3.0,
    "states_10k_s": 3.0,
    "collect_10k_s": 10.0,
    "overhead_ms_median": 30.0,
    "cpu_ms_per_job": 60.0,
    "idle_gap_ms_median": 50.0,
}
"""What each figure may be at most; from the project's targets for two CPU cores."""
RUNS: Final = 10_000
PROMPTS: Final = 100
SMALL: Final = {"width": 64, "height": 32, "frames": 5, "steps": 1, "workflow": "t2va"}
OVERHEAD_JOBS: Final = 40
COLLECT_MEMORY_BYTES: Final = 64 * 1024 * 1024
_WAIT_SECONDS: Final = 60.0


def measure_queue(*, idle_jobs: int) -> dict[str, float]:
    """Return every figure by its name in `LIMITS`, and how submitting grows with the number of runs."""
    with tempfile.TemporaryDirectory(prefix="h3-queue-") as name:
        folder = Path(name)
        found = _submissions(folder)
        found |= _collection(folder / "records")
        found |= _overhead(folder / "node")
    found["idle_gap_ms_median"] = measure_idle_gap(jobs=idle_jobs).idle_gap_ms_median
    return found


def _submissions(folder: Path) -> dict[str, float]:
    """Submit, submit again and look up, through the client, with a store that holds nothing."""
    server, url = start_redis(folder, port=0, environment=os.environ)
    try:
        client = H3Client(redis_url=url, storage_url=str(folder / "store"), checkpoint=CHECKPOINT)
        found, seeds = {}, range(RUNS // PROMPTS)
        for prompts in (PROMPTS // 4, PROMPTS // 2, PROMPTS):
            texts = [f"{prompts} prompts, number {number}" for number in range(prompts)]
            took = _seconds(lambda: client.sweep(texts, seeds, fields=SMALL))  # noqa: B023 - called at once
            found[f"submit_{prompts * len(seeds)}_s"] = took
        found["submit_10k_s"] = found.pop(f"submit_{RUNS}_s")
        found["resubmit_10k_s"] = _seconds(lambda: client.sweep(texts, seeds, fields=SMALL))
        handle = client.sweep(texts, seeds, fields=SMALL)
        found["states_10k_s"] = _seconds(lambda: client.statuses(handle))
        return found
    finally:
        end_all([server], seconds=5.0)


def _collection(folder: Path) -> dict[str, float]:
    """Write ten thousand runs as a fleet leaves them, then collect them; memory is Python's own count."""
    store = open_store(str(folder))
    for seed in range(RUNS):
        job = build_job({"prompt": "collect", "seed": seed, **SMALL}, checkpoint=CHECKPOINT)
        prefix = attempt_prefix(job.job_id, 1, 1)
        (folder / prefix).mkdir(parents=True)
        record = BenchmarkRecord(
            run_id=job.job_id,
            job_id=job.job_id,
            generation=1,
            attempt=1,
            status=JobStatus.SUCCEEDED,
            request=job.model_dump(mode="json"),
            seconds=Seconds(denoise=1.0, denoise_steps=[0.5, 0.5], total=2.0),
            started_at="2026-01-01T00:00:00Z",
            finished_at="2026-01-01T00:00:02Z",
        )
        benchmark = OutputFile(name=f"{prefix}/benchmark.json", size_bytes=1, sha256="0" * 64)
        manifest = Manifest(
            run_id=job.job_id,
            job_id=job.job_id,
            generation=1,
            attempt=1,
            status=JobStatus.SUCCEEDED,
            files={"benchmark": benchmark},
            finished_at=record.finished_at,
        )
        # Plain writes: the store's own would flush each file to the disk, which is not what is measured.
        (folder / benchmark.name).write_text(record.model_dump_json())
        (folder / manifest_key(job.job_id, 1)).write_text(manifest.model_dump_json())

    def collect() -> None:
        collected = collect_files(
            store, csv_file=folder.with_suffix(".csv"), json_file=folder.with_suffix(".json")
        )
        assert collected.num_records == RUNS, collected.problems[:3]

    seconds = _seconds(collect)
    tracemalloc.start()
    collect()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"collect_10k_s": seconds, "collect_peak_mb": round(peak / 1e6, 1)}


def _overhead(folder: Path) -> dict[str, float]:
    """One job at a time through a node whose engine takes no time: from being queued to its GPU thread."""
    folder.mkdir()
    with timed_node(folder, pullers=2, prepare_seconds=0.0, step_seconds=0.0) as node:
        connection = connect(node.redis_url)
        _run_one(connection, node, seed=0)  # warm: connections, imports
        with _cpu_seconds(node) as cpu:
            delays = [_run_one(connection, node, seed=seed) for seed in range(1, OVERHEAD_JOBS + 1)]
    return {
        "overhead_ms_median": round(statistics.median(delays) * 1000, 2),
        "cpu_ms_per_job": round(cpu["seconds"] * 1000 / OVERHEAD_JOBS, 1),
    }


def _run_one(connection: redis.Redis, node: TimedNode, *, seed: int) -> float:
    """Queue one job, wait for its end, and return the seconds until the engine began."""
    job = build_job({"prompt": "overhead", "seed": seed, **SMALL}, checkpoint=CHECKPOINT)
    run = QueuedRun(
        run_id=job.job_id,
        generation=1,
        job=job.model_dump(mode="json"),
        needs=needs_of(job, RunKey()),
    )
    queued = time.monotonic()
    (outcome,) = submit_runs(connection, [run])
    while (state := read_states(connection, [outcome.entry_id])[0].status) is not JobStatus.SUCCEEDED:
        assert state is None or not state.terminal, state
        assert time.monotonic() < queued + _WAIT_SECONDS, "the job did not end"
        time.sleep(0.05)
    turns = map(json.loads, node.turns.read_text().splitlines())
    return next(float(turn["began"]) for turn in turns if turn["job_id"] == job.job_id) - queued


@contextmanager
def _cpu_seconds(node: TimedNode) -> Iterator[dict[str, float]]:
    """Measure the CPU time of every process of the fleet path, this client included."""
    found: dict[str, float] = {}
    before = sum(_cpu_of(pid) for pid in node.pids) + time.process_time()
    yield found
    found["seconds"] = sum(_cpu_of(pid) for pid in node.pids) + time.process_time() - before


def _cpu_of(pid: int) -> float:
    """User and system seconds of a process and of its children that have ended (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(value) for value in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _seconds(call: Callable[[], Any]) -> float:
    began = time.monotonic()
    call()
    return round(time.monotonic() - began, 3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether every figure is within its limit."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="python -m benchmarks.queue")
    parser.add_argument("--idle-jobs", type=int, default=6, help="jobs of 6.5 s for the idle gap")
    found = measure_queue(idle_jobs=parser.parse_args(arguments).idle_jobs)
    for name, value in found.items():
        limit = f"   (at most {LIMITS[name]:g})" if name in LIMITS else ""
        print(f"  {name:20} {value:10g}{limit}")  # noqa: T201
    print(json.dumps(found, separators=(",", ":")))  # noqa: T201
    return 0 if all(found[name] <= limit for name, limit in LIMITS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
