"""Files that a person names on the command line: read up to a limit, whatever kind of file they are."""

import os
from pathlib import Path

from client.errors import SweepInputError


def read_given_file(path: Path, *, limit_bytes: int, what: str) -> bytes:
    """Return the content of a file, or of a pipe such as a shell's `<(command)`.

    A pipe that nobody writes to is empty, and a device that never ends is over the limit. Raises
    SweepInputError; `what` is what the file was named as.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise SweepInputError(f"cannot read the {what} {path}: {error.strerror}") from None
    if len(data) > limit_bytes:
        raise SweepInputError(f"{path}: more than {limit_bytes:,} bytes are no {what}")
    return data


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for a writer; reading then waits for those there are."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if hasattr(os, "O_NONBLOCK"):  # not on Windows
        os.set_blocking(descriptor, True)
    return descriptor
