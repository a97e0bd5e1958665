"""What every command of this package does alike: settings from options, one sentence and an exit code."""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import typer

from queue_schemas.errors import EXIT_INTERRUPTED
from worker.errors import exit_code_of, job_error
from worker.settings import Settings, read_settings


def settings_with(**options: Any) -> Settings:
    """Return the environment's settings with every given option in place of its name there."""
    settings, warnings = read_settings()
    for warning in warnings:
        tell(f"warning: {warning}")
    return replace(settings, **{name: value for name, value in options.items() if value is not None})


@contextmanager
def reported(level: int = logging.INFO) -> Iterator[None]:
    """End the command with one sentence and the exit code that fits; no traceback for a known error."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s", level=level)
    for noisy in ("urllib3", "uvicorn.error", "rq"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    hang_up_as_terminate()
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except Exception as error:  # `main`: every failure ends with a sentence
        if not hasattr(error, "code"):
            logging.getLogger(__name__).error("unexpected %s", type(error).__name__, exc_info=error)
        tell(f"error: {job_error(error).message}")
        raise typer.Exit(exit_code_of(error)) from None


def hang_up_as_terminate() -> None:
    """Have a SIGHUP, as of a closed terminal, end this process in order; under nohup it stays ignored."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def tell(message: str) -> None:
    """Say something to the person on stderr."""
    typer.echo(message, err=True)
