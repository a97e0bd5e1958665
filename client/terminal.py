"""What a terminal may be given: text of others (prompts, labels, messages, names) never steers it.

Markup is off as well. JSON needs none of this: its writer escapes such characters itself.
"""

import logging
import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line ends, changes of direction, and half characters, which cannot be written."""


def printable(text: str) -> str:
    """Return a text as one line, what would steer a terminal as escapes such as `\\x1b`."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def say(sentence: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"h3: {printable(sentence)}\n")


class PlainConsole(Console):
    """A console whose own colours and cursor moves are the only ones, whatever it is given to print.

    A cell of a table is laid out before this, so its text is better `printable` already.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            lines = segment.text.split("\n")
            text = "\n".join(map(printable, lines))
            yield segment if segment.control else Segment(text, segment.style)


class SayingHandler(logging.Handler):
    """Lets a person read what the library logs as a warning."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())
