"""Reading an architecture off tensor names and shapes. Imports no torch."""

from collections.abc import Container
from itertools import count


def count_consecutive(names: Container[str], pattern: str) -> int:
    """Count `pattern.format(0)`, `pattern.format(1)`, ... among `names`, up to the first that is missing.

    What lies past a gap is left over, and the strict loader refuses it.
    """
    return next(index for index in count() if pattern.format(index) not in names)
