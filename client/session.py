"""What every `h3` command shares: common options, where output goes, errors as one sentence and a code.

A command is a function whose first argument is a `Session`; `command` adds the common options, which may
stand before or after the command's name. Human output on a terminal, one compact JSON line otherwise.
"""

import inspect
import json
import logging
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from broker.address import mask_secrets
from broker.errors import BrokerError
from client.errors import ClientError
from client.heartbeat import TransferNotes
from client.options import COMMON_OPTIONS, HOW_OPTIONS, JOB_OPTIONS
from client.settings import ClientSettings
from client.terminal import PlainConsole, say
from queue_schemas.errors import EXIT_INTERRUPTED, ErrorCode, SchemaError
from queue_schemas.programs import typed
from storage.errors import StorageError
from storage.s3_address import OPTIONS

if TYPE_CHECKING:
    from client.client import H3Client

logger = logging.getLogger(__name__)

EXPECTED_ERRORS = (ClientError, BrokerError, StorageError, SchemaError)


@dataclass(kw_only=True)
class Session:
    """One invocation: its settings, its client, and the only way to its standard output."""

    settings: ClientSettings
    storage_flag: str | None = None
    """`--storage`, where it was given."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """The addresses that were given as flags; a hint repeats them, so that it can be pasted."""
    as_json: bool = False
    quiet: bool = False

    @cached_property
    def client(self) -> "H3Client":
        from client.client import H3Client  # noqa: PLC0415 - rq alone takes a third of a second

        client = H3Client.from_settings(self.settings)
        client.transfer_watch = TransferNotes(self.note)
        return client

    @cached_property
    def console(self) -> Console:
        """For people; writes nothing unless `human`."""
        return PlainConsole(quiet=not self.human)

    @property
    def human(self) -> bool:
        return sys.stdout.isatty() and not self.as_json and not self.quiet

    def hint(self, words: str) -> str:
        """Return the command `h3 <words>` as it can be typed here, addresses included, no password shown."""
        shown = {name: mask_secrets(value, harmless=OPTIONS) for name, value in self.flags.items()}
        flags = (f"--{name} {shlex.quote(value)}" for name, value in shown.items())
        return " ".join([shlex.quote(typed("h3")), words, *flags])

    def emit(self, value: Mapping[str, Any]) -> None:
        """Print the one JSON line of a command, unless a person or nobody is listening."""
        if not self.human and not self.quiet:
            self.print_json(value)

    def print_json(self, value: Mapping[str, Any]) -> None:
        print_line(value)

    def note(self, sentence: str) -> None:
        """Tell a person something that is no error, beside the output."""
        if not self.quiet:
            say(f"note: {sentence}")

    def fail(self, code: ErrorCode, sentence: str) -> int:
        """Say what went wrong, for people and programs; return the exit code."""
        say(sentence)
        self.emit(error_line(code, sentence))
        return code.exit_code


def print_line(value: Mapping[str, Any]) -> None:
    """Write one compact JSON line to standard output."""
    sys.stdout.write(json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n")
    sys.stdout.flush()


def error_line(code: ErrorCode, sentence: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": sentence, "retryable": code.retryable}}


Command = Callable[..., int]


def command(
    app: typer.Typer,
    *,
    example: str,
    job_options: bool = False,
    how_options: bool = False,
    without: Sequence[str] = (),
    storage: Any = COMMON_OPTIONS["storage"][0],
) -> Callable[[Command], Command]:
    """Register `function(session, [fields, how], ...) -> exit code`, with the common options added.

    With `job_options` the options that were given arrive as the mapping `fields`, with `how_options` the
    way of submitting as `how`. The common options in `without` are none of this command's; `--json` before
    its name still asks for a line. `storage` is `--storage` as this command means it.
    """
    spelled = {**COMMON_OPTIONS, "storage": (storage, None)}
    common_options = {name: option for name, option in spelled.items() if name not in without}

    def register(function: Command) -> Command:
        own = list(inspect.signature(function).parameters.values())[1 + job_options + how_options :]

        def run(ctx: typer.Context, **given: Any) -> None:
            _refuse_useless(ctx, function.__name__, without=without)
            common = {name: given.pop(name, None) or ctx.obj[name] for name in COMMON_OPTIONS}
            if job_options:
                given["fields"] = {name: given.pop(name) for name in JOB_OPTIONS}
                given["fields"] = {k: v for k, v in given["fields"].items() if v is not None}
            if how_options:
                given["how"] = {name: given.pop(name) for name in HOW_OPTIONS}
            raise typer.Exit(_run(function, common, given))

        added = {
            **(JOB_OPTIONS if job_options else {}),
            **(HOW_OPTIONS if how_options else {}),
            **common_options,
        }
        context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in added.items()
        ]
        run.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined]  # typer reads it
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        app.command(name=function.__name__, epilog=f"Example: {example}")(run)
        return function

    return register


def _refuse_useless(ctx: typer.Context, command_name: str, *, without: Sequence[str]) -> None:
    """Refuse an option before the command's name that the command would ignore."""
    for name in without:
        if name != "as_json" and ctx.obj[name] is not None:
            raise typer.BadParameter(f"h3 {command_name} has no use for --{name}; leave it out")


def _run(function: Command, common: Mapping[str, Any], given: Mapping[str, Any]) -> int:
    session = Session(
        settings=ClientSettings(),
        storage_flag=common["storage"],
        flags={name: common[name] for name in ("redis", "storage", "fleet") if common[name]},
        as_json=bool(common["as_json"]),
        quiet=bool(common["quiet"]),
    )
    try:
        session.settings = _with_flags(ClientSettings.from_environment(), common)
        for warning in session.settings.warnings:
            session.note(warning)
        return function(session, **given)
    except EXPECTED_ERRORS as error:
        return session.fail(error.code, str(error))
    except KeyboardInterrupt:
        say("interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:
        logger.debug("unexpected error", exc_info=True)
        return session.fail(ErrorCode.INTERNAL, f"unexpected {type(error).__name__}: {error}")


def _with_flags(settings: ClientSettings, flags: Mapping[str, Any]) -> ClientSettings:
    return replace(
        settings,
        redis_url=flags["redis"] or settings.redis_url,
        storage_url=flags["storage"] or settings.storage_url,
        fleet=flags["fleet"] or settings.fleet,
    )
