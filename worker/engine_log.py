"""The engine's own log as a file: what it said while a job was with it, and how it died.

It lies in the output root, where job processes of the node read it; the newest two times LOG_BYTES are kept.
A fault of the interpreter (segmentation fault, abort) leaves the stack of its thread there.
"""

import faulthandler
import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any, Final

from queue_schemas import limits
from worker.output_root import OutputRootError
from worker.own_names import ENGINE_LOG

_SAID_CHARACTERS: Final = 4_000
_MODULES: Final = "Extension modules: "
"""A line of thousands of characters that the interpreter puts behind a stack."""


class EngineLog(RotatingFileHandler):
    """A handler for the engine's process; engines of one host may share an output root.

    Raises OutputRootError where the file cannot be had.
    """

    def __init__(self, root: Path, *, node: str) -> None:
        place = _path(root, node)
        for path in (place, place.with_name(f"{place.name}.1")):
            if os.path.lexists(path) and not path.is_file():
                raise OutputRootError(root, f"{path.name} in it is no file, so that no log can be kept")
        try:
            super().__init__(place, maxBytes=limits.LOG_BYTES, backupCount=1, encoding="utf-8")
        except OSError as error:
            raise OutputRootError(root, f"{place.name}: {str(error.strerror).lower()}") from error
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def _open(self) -> Any:
        stream: IO[str] = super()._open()
        faulthandler.enable(stream, all_threads=False)  # again after each change of files
        return stream


def engine_log_size(root: Path, *, node: str) -> int:
    """Return where the log ends now; 0 where the engine keeps none."""
    try:
        return _path(root, node).stat().st_size
    except OSError:
        return 0


def engine_said(root: Path, *, node: str, since: int) -> str:
    """Return the end of what came behind `since`, or of all where the log was begun anew."""
    try:
        with _path(root, node).open("rb") as stream:
            size = stream.seek(0, 2)
            start = since if since <= size else 0
            stream.seek(max(start, size - limits.LOG_BYTES))
            said = stream.read(limits.LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
    lines = [line for line in said.splitlines(keepends=True) if not line.startswith(_MODULES)]
    return "".join(lines)[-_SAID_CHARACTERS:]


def _path(root: Path, node: str) -> Path:
    return root / ENGINE_LOG.format(node=node)
