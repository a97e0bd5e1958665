"""The `h3` command: submit, sweep, status, follow, fetch, cancel, collect, nodes, jobs, doctor, demo.

Exit codes: 0 done; 1 the answer is no (a run did not succeed, a check failed); 2 refused input; 3 the queue
or storage failed; 130 interrupted. What is printed where is `session.py`'s; what a person sees, `show.py`'s.
"""

import logging
import signal
import sys
from collections.abc import Sequence

from client import cli_check, cli_fleet, cli_records, cli_runs, cli_submit  # noqa: F401 - each registers its commands
from client.cli_app import app
from client.terminal import SayingHandler
from queue_schemas.command_lines import run_command_line


def main() -> None:
    """Entry point of `h3`. A termination signal counts as Ctrl-C, so that it cleans up the same way."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.getLogger().addHandler(SayingHandler(logging.WARNING))
    raise SystemExit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    return run_command_line(app, arguments, name="h3", interrupted="h3: interrupted")


if __name__ == "__main__":
    main()
