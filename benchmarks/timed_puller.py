"""A puller that takes a set time to prepare every job: `python -m benchmarks.timed_puller SECONDS`.

All of it is the real thing, and so is its memory: it imports no more than a real puller.
"""

import sys
import time
from typing import Any, Final

from worker import tasks
from worker.command import reported
from worker.pulling import pull_until_signal
from worker.settings import read_settings

_READY_SECONDS: Final = 30.0


def main() -> None:
    """Pull until a signal; every job is prepared for so many seconds more than it takes anyway."""
    prepare = tasks.prepare  # type: ignore[attr-defined]  # not its to export, but here to be slowed down

    def slow_prepare(*arguments: Any, **named: Any) -> None:
        time.sleep(float(sys.argv[1]))
        prepare(*arguments, **named)

    tasks.prepare = slow_prepare  # type: ignore[attr-defined]
    with reported():
        settings, _ = read_settings()
        pull_until_signal(settings, engine_seconds=_READY_SECONDS)


if __name__ == "__main__":
    main()
