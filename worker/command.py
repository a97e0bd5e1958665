"""What every command of this package does alike: settings from options, what is said where, an exit code."""

import json
import logging
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import typer

from queue_schemas.errors import EXIT_INTERRUPTED
from worker.errors import exit_code_of, job_error
from worker.settings import Settings, read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Sentences for a person go to stderr, compact JSON lines for a program to stdout."""

    as_json: bool = False
    """Whether there is such a program."""
    quiet: bool = False
    """Nothing but errors, and these as sentences."""

    def tell(self, sentence: str) -> None:
        if not self.quiet:
            tell(sentence)

    def emit(self, value: Mapping[str, Any]) -> None:
        if self.as_json and not self.quiet:
            typer.echo(json.dumps(value, separators=(",", ":")))
            sys.stdout.flush()


def settings_with(output: Output, **options: Any) -> Settings:
    """Return the environment's settings with every given option in place of its name there."""
    settings, warnings = read_settings()
    for warning in warnings:
        output.tell(f"warning: {warning}")
    return replace(settings, **{name: value for name, value in options.items() if value is not None})


@contextmanager
def reported(output: Output | None = None, *, level: int = logging.INFO) -> Iterator[Output]:
    """End the command with one sentence and the exit code that fits; no traceback for a known error."""
    output = output or Output()
    level = logging.ERROR if output.quiet else level
    shown = logging.StreamHandler(sys.stderr)
    shown.setLevel(level)  # of what is shown; the logs of attempts and of the engine hold more
    form = "%(asctime)s %(name)s: %(message)s"
    logging.basicConfig(handlers=[shown], format=form, level=min(level, logging.INFO))
    for noisy in ("urllib3", "uvicorn.error", "rq", "botocore", "boto3", "s3transfer"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))
    hang_up_as_terminate()
    try:
        yield output
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except Exception as error:  # `main`: every failure ends with a sentence
        if not hasattr(error, "code"):
            logging.getLogger(__name__).error("unexpected %s", type(error).__name__, exc_info=error)
        told = job_error(error)
        tell(f"error: {told.message}")
        output.emit({"error": told.model_dump(mode="json")})
        raise typer.Exit(exit_code_of(error)) from None


def hang_up_as_terminate() -> None:
    """Have a SIGHUP, as of a closed terminal, end this process in order; under nohup it stays ignored."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))


def tell(message: str) -> None:
    """Say something to the person on stderr."""
    typer.echo(message, err=True)
