"""How long the GPU idles between two queued jobs: `python -m benchmarks.idle_gap`.

A real redis-server, engine service and two pullers; the engine's jobs sleep, and every job needs 5 s of
preparation. The gap is from the end of one job on the engine's GPU thread to the beginning of the next; how
long a prepared job waited in the engine says how much too early it was claimed. Prints a table, then one JSON
line.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.timed_engine import CHECKPOINT
from benchmarks.timed_node import TimedNode, timed_node
from broker.connection import connect
from broker.states import read_states
from broker.submit import QueuedRun, submit_runs
from queue_schemas.events import JobStatus
from queue_schemas.jobs import build_job
from queue_schemas.runs import RunKey, needs_of, run_id_of
from worker.errors import WorkerError

STEPS: Final = 10
LIMIT_MS: Final = 50.0
"""What DESIGN section 9 allows for the median."""
_SLACK_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleGap:
    """One measurement; its gaps are in the order of the jobs."""

    jobs: int
    pullers: int
    prepare_seconds: float
    job_seconds: float
    gaps_ms: list[float]
    idle_gap_ms_median: float
    idle_gap_ms_max: float
    engine_wait_seconds_median: float
    """How long a prepared job waited for its turn: another node could have begun it so much earlier."""


class GapBenchmarkError(WorkerError):
    """Raised when the jobs of the benchmark did not all succeed in time."""


def measure_idle_gap(
    *, jobs: int = 8, pullers: int = 2, prepare_seconds: float = 5.0, job_seconds: float = 6.5
) -> IdleGap:
    """Run `jobs` jobs through a node of its own, all queued at once. Raises GapBenchmarkError."""
    with tempfile.TemporaryDirectory(prefix="h3-gap-") as name:
        folder = Path(name)
        seconds = jobs * (job_seconds + prepare_seconds) + _SLACK_SECONDS
        with timed_node(
            folder, pullers=pullers, prepare_seconds=prepare_seconds, step_seconds=job_seconds / STEPS
        ) as node:
            _wait(_submit(node.redis_url, jobs), node.redis_url, seconds=seconds)
        turns, waits = _turns(node)
    gaps = [1000.0 * (after - before) for (_, before), (after, _) in pairwise(turns)]
    return IdleGap(
        jobs=jobs,
        pullers=pullers,
        prepare_seconds=prepare_seconds,
        job_seconds=job_seconds,
        gaps_ms=[round(gap, 2) for gap in gaps],
        idle_gap_ms_median=round(statistics.median(gaps), 2),
        idle_gap_ms_max=round(max(gaps), 2),
        engine_wait_seconds_median=round(statistics.median(waits), 3),
    )


def _turns(node: TimedNode) -> tuple[list[tuple[float, float]], list[float]]:
    """Return when each job began and ended on the GPU, and how long each waited for its turn there."""
    lines = [json.loads(line) for line in node.turns.read_text().splitlines()]
    records = [json.loads(path.read_text()) for path in node.store.rglob("benchmark.json")]
    waits = [record["seconds"]["engine_wait"] for record in records]
    return sorted((line["began"], line["ended"]) for line in lines), waits


def _submit(redis_url: str, jobs: int) -> list[str]:
    runs = []
    for seed in range(jobs):
        fields = {"prompt": "idle", "width": 64, "height": 32, "frames": 5, "steps": STEPS, "seed": seed}
        job = build_job(fields, checkpoint=CHECKPOINT)
        run = QueuedRun(
            run_id=run_id_of(job, RunKey()),
            generation=1,
            job=job.model_dump(mode="json"),
            needs=needs_of(job, RunKey()),
        )
        runs.append(run)
    return [outcome.entry_id for outcome in submit_runs(connect(redis_url), runs)]


def _wait(entries: Sequence[str], redis_url: str, *, seconds: float) -> None:
    deadline, connection = time.monotonic() + seconds, connect(redis_url)
    while time.monotonic() < deadline:
        states = [state.status for state in read_states(connection, list(entries))]
        if all(status is JobStatus.SUCCEEDED for status in states):
            return
        if any(status in (JobStatus.FAILED, JobStatus.CANCELLED) for status in states):
            raise GapBenchmarkError(f"a job failed: {states}")
        time.sleep(0.2)
    raise GapBenchmarkError(f"not every job ended within {seconds:.0f} s: {states}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether the median is within its limit."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="python -m benchmarks.idle_gap --jobs 8")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--pullers", type=int, default=2)
    parser.add_argument("--prepare-seconds", type=float, default=5.0)
    parser.add_argument("--job-seconds", type=float, default=6.5)
    found = measure_idle_gap(**vars(parser.parse_args(arguments)))
    print(f"{found.jobs} jobs of {found.job_seconds} s, {found.prepare_seconds} s of preparation each")  # noqa: T201
    print("  after job   idle ms")  # noqa: T201
    for number, gap in enumerate(found.gaps_ms, start=1):
        print(f"  {number:9d}   {gap:7.2f}")  # noqa: T201
    print(f"  median      {found.idle_gap_ms_median:7.2f}   (at most {LIMIT_MS:.0f})")  # noqa: T201
    print(f"  in the engine before their turn: {found.engine_wait_seconds_median:.2f} s (median)")  # noqa: T201
    print(json.dumps(asdict(found), separators=(",", ":")))  # noqa: T201
    return 0 if found.idle_gap_ms_median <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
