"""The `h3` command: submit, sweep, status, follow, fetch, cancel, collect, nodes, jobs, doctor, demo.

Exit codes: 0 done; 1 the answer is no (a run did not succeed, a check failed); 2 refused input; 3 the queue
or storage failed; 130 interrupted. What is printed where is `session.py`'s; what a person sees, `show.py`'s.
"""

import logging
import signal
import sys
from collections.abc import Sequence

import typer

from client import cli_fleet, cli_records, cli_runs, cli_submit  # noqa: F401 - each registers its commands
from client.cli_app import app
from client.session import error_line, print_line
from client.terminal import SayingHandler, say
from queue_schemas.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED, ErrorCode

# typer may bring a click of its own, so the base of its usage errors has no public name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def main() -> None:
    """Entry point of `h3`. A termination signal counts as Ctrl-C, so that it cleans up the same way."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.getLogger().addHandler(SayingHandler(logging.WARNING))
    raise SystemExit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    try:
        code = app(list(arguments) or ["--help"], standalone_mode=False, prog_name="h3")
        return EXIT_OK if code is None else int(code)
    except _UsageError as error:
        error.show()  # type: ignore[attr-defined]  # click's own words, with the usage line
        if "--quiet" not in arguments and (not sys.stdout.isatty() or "--json" in arguments):
            message = error.format_message()  # type: ignore[attr-defined]
            print_line(error_line(ErrorCode.INVALID_REQUEST, message))
        return EXIT_REFUSED
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        return EXIT_INTERRUPTED
