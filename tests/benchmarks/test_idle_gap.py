"""The benchmark of the gap between jobs runs, and shows that preparing overlaps with the job before."""

import json
import subprocess
import sys


def test_preparing_the_next_job_overlaps_with_the_running_one() -> None:
    options = ["--jobs", "3", "--prepare-seconds", "1.0", "--job-seconds", "1.6"]

    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.idle_gap", *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert ended.returncode in (0, 1), ended.stderr  # busy cores may cost more than the limit
    found = json.loads(ended.stdout.splitlines()[-1])
    assert len(found["gaps_ms"]) == 2
    assert 0.0 <= found["idle_gap_ms_median"] < 500.0  # one after the other it would be 1,000 and more
    assert found["engine_wait_seconds_median"] < 1.6
