"""What a terminal may be given: text of others (prompts, labels, messages, names) never steers it.

Markup is off as well. JSON needs none of this: its writer escapes such characters itself.
"""

import logging
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from queue_schemas.text import printable


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
