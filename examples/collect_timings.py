"""Compare what nodes took for the same kind of film, from the benchmark records in storage alone.

    python examples/collect_timings.py --storage outputs/store

One row per device, size, length and number of steps: how many films, and the medians. No queue is asked, and
no node need be alive.
"""

import argparse
import statistics
import sys
from collections import defaultdict

from client.collect import Collected, records_in
from client.errors import ClientError
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.events import JobStatus
from storage.errors import StorageError
from storage.uri import open_store


def main() -> int:
    parser = argparse.ArgumentParser(description="Print the timings of all films in a store.")
    parser.add_argument("--storage", default="outputs/store", help="a folder or s3://bucket/prefix")
    parser.add_argument("--sweep", help="only the runs of that sweep")
    given = parser.parse_args()
    try:
        return show_timings(given.storage, sweep_id=given.sweep)
    except (ClientError, StorageError) as error:
        print(error, file=sys.stderr)
        return error.code.exit_code


def show_timings(storage_url: str, *, sweep_id: str | None) -> int:
    groups: dict[tuple[str, str, int, int], list[BenchmarkRecord]] = defaultdict(list)
    for found in records_in(open_store(storage_url), sweep_id=sweep_id):
        if not isinstance(found, Collected):
            print(f"left out: {found}", file=sys.stderr)
        elif found.record.status is JobStatus.SUCCEEDED:
            groups[kind_of(found.record)].append(found.record)
    print("device  size  frames  steps  films  s/step  s/film")
    for (device, size, frames, steps), records in sorted(groups.items()):
        step = median([seconds for record in records for seconds in record.seconds.denoise_steps])
        film = median([record.seconds.total for record in records if record.seconds.total is not None])
        print(f"{device}  {size}  {frames}  {steps}  {len(records)}  {step}  {film}")
    return 0 if groups else 1


def kind_of(record: BenchmarkRecord) -> tuple[str, str, int, int]:
    job = record.request
    device = record.environment.device if record.environment else "unknown"
    return device, f"{job['width']}x{job['height']}", job["frames"], job["steps"]


def median(values: list[float]) -> str:
    return f"{statistics.median(values):.3f}" if values else "-"


if __name__ == "__main__":
    sys.exit(main())
