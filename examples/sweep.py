"""Sweep some prompts with some seeds through a fleet, and say where the films are.

    python examples/sweep.py --redis redis://127.0.0.1:6379/0 --storage outputs/store

Run it again and nothing is made twice: what succeeded is answered from storage. The films are small, so that
a CPU with h3-tiny makes them in seconds; a film of real weights wants 960 x 544, 124 frames and 20 steps.
Exit codes: 0; 1 when a run did not succeed; 2 and 3, with one sentence, as of `h3`.
"""

import argparse
import sys

from client import H3Client
from client.session import EXPECTED_ERRORS
from queue_schemas.events import JobStatus

PROMPTS = (
    "A red fox trots through fresh snow; snow crunches under its paws.",
    "Waves break on a black beach at dusk; wind and gulls over the surf.",
)
SEEDS = (7, 2026)
SMALL = {"width": 192, "height": 128, "frames": 39}


def main() -> int:
    parser = argparse.ArgumentParser(description="Sweep two prompts with two seeds.")
    parser.add_argument("--redis", default="redis://127.0.0.1:6379/0", help="the fleet's queue")
    parser.add_argument("--storage", default="outputs/store", help="where its nodes write")
    parser.add_argument("--steps", type=int, default=4, help="model evaluations per film")
    given = parser.parse_args()
    try:
        return sweep(given.redis, given.storage, steps=given.steps)
    except EXPECTED_ERRORS as error:
        print(error, file=sys.stderr)
        return error.code.exit_code


def sweep(redis_url: str, storage_url: str, *, steps: int) -> int:
    h3 = H3Client(redis_url=redis_url, storage_url=storage_url)
    asked = h3.sweep(PROMPTS, SEEDS, fields={**SMALL, "steps": steps})
    labels = {run.run_id: run.label for run in asked.runs}
    for note in asked.notes:
        print(f"note: {note}", file=sys.stderr)

    failed = 0
    for status in h3.follow(asked):  # every change of every run; ends with the last of them
        if status.status.terminal:
            print(f"{labels[status.run_id]}: {status.status}")
            failed += status.status is not JobStatus.SUCCEEDED
    for result in h3.results(asked):
        if result.video is not None:
            print(result.video)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
