"""Text of others (prompts, names, messages) as a person may be shown it: one line, of bounded length."""

import re
from typing import Final

from queue_schemas import limits

_STEERING: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line ends, changes of direction, and half characters, which cannot be written."""


def printable(text: str) -> str:
    """Return a text as one line, what would steer a terminal as escapes such as `\\x1b`."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def shortened(text: str, characters: int = limits.FAULT_CHARACTERS) -> str:
    """Return the text, or its beginning where it is longer."""
    return text if len(text) <= characters else text[: characters - 1] + "…"
