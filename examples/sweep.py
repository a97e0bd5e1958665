"""Sweep some prompts with some seeds through a fleet, and say where the films are.

    python examples/sweep.py --redis redis://127.0.0.1:6379/0 --storage outputs/store

Run it again and nothing is made twice: what succeeded is answered from storage.
"""

import argparse
import sys

from client import H3Client
from queue_schemas.events import JobStatus

PROMPTS = (
    "A red fox trots through fresh snow; snow crunches under its paws.",
    "Waves break on a black beach at dusk; wind and gulls over the surf.",
)
SEEDS = (7, 2026)


def main() -> int:
    parser = argparse.ArgumentParser(description="Sweep two prompts with two seeds.")
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0", help="the fleet's queue")
    parser.add_argument("--storage", default="outputs/store", help="where its nodes write")
    parser.add_argument("--steps", type=int, default=20, help="model evaluations per film")
    given = parser.parse_args()

    h3 = H3Client(redis_url=given.redis, storage_url=given.storage)
    sweep = h3.sweep(PROMPTS, SEEDS, fields={"frames": 124, "steps": given.steps})
    labels = {run.run_id: run.label for run in sweep.runs}
    for note in sweep.notes:
        print(f"note: {note}", file=sys.stderr)

    failed = 0
    for status in h3.follow(sweep):  # every change of every run; ends with the last of them
        if status.status.terminal:
            print(f"{labels[status.run_id]}: {status.status}")
            failed += status.status is not JobStatus.SUCCEEDED
    for result in h3.results(sweep):
        if result.video is not None:
            print(result.video)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
