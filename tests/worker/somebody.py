"""Another user than root, who may write everywhere: for tests of what this user may not write."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65_534


@contextmanager
def open_folder() -> Iterator[Path]:
    """A new folder that every user reaches; pytest's own is private."""
    with tempfile.TemporaryDirectory(prefix="h3-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def as_somebody() -> Iterator[None]:
    """Be a user without privileges inside the block; whoever is one already stays so."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
