"""From the arguments of any typer application of this project to its exit code.

The one place that knows what a usage error is: a sentence for a person, and the one JSON line for a program.
"""

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from queue_schemas import limits
from queue_schemas.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_REFUSED, ErrorCode
from queue_schemas.text import shortened

# typer may bring a click of its own, so the base of its usage errors has no public name.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def run_command_line(
    app: typer.Typer,
    arguments: Sequence[str],
    *,
    name: str,
    interrupted: str = "interrupted",
    say: Callable[[str], None] | None = None,
) -> int:
    """Run one command line; return its exit code. No arguments ask for help.

    `say` tells a usage error in one sentence; without it click does, with the usage line.
    """
    for command in app.registered_commands:  # else the list of commands cuts them
        if command.callback is not None:
            command.short_help = first_sentence(command.callback)
    try:
        code = app(list(arguments) or ["--help"], standalone_mode=False, prog_name=name)
        return EXIT_OK if code is None else int(code)
    except _UsageError as error:
        # Of pydantic, by which typer converts; the attribute and the methods are click's.
        error.message = error.message.removeprefix("Value error, ")  # type: ignore[attr-defined]
        message = " ".join(error.format_message().split())  # type: ignore[attr-defined]  # click's
        if say is None:
            error.show()  # type: ignore[attr-defined]  # the same
        else:
            say(message)
        if "--quiet" not in arguments and (not sys.stdout.isatty() or "--json" in arguments):
            code = ErrorCode.INVALID_REQUEST
            told = {"code": code, "message": message, "retryable": code.retryable}
            sys.stdout.write(json.dumps({"error": told}, separators=(",", ":")) + "\n")
        return EXIT_REFUSED
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write(f"{interrupted}\n")
        return EXIT_INTERRUPTED


def number_option(*names: str, help: str) -> Any:
    """Return a typer option for a whole number that is written in digits: none of `7_0`, ` 7`, `1.0`, `٧`."""
    return typer.Option(*names, help=help, metavar="NUMBER", parser=_whole_number)


def _whole_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"{shortened(text, 40)!r} is no whole number; write it in digits")
    if len(text) > limits.NUMBER_CHARACTERS:
        raise typer.BadParameter(f"{len(text):,} digits; at most {limits.NUMBER_CHARACTERS} are read")
    return int(text)


def first_sentence(function: Callable[..., object]) -> str:
    """Return the first sentence of a docstring, on one line."""
    paragraph = inspect.cleandoc(function.__doc__ or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).partition(". ")[0].removesuffix(".")
