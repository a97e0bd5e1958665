"""The engine's output root: proved before anything is loaded, and rid of what killed attempts left there.

Only what this project alone names so is ever removed, and not before a day: films of attempts, which are
moved to the store within minutes, and unfinished files. A film that somebody asked for by a name stays.
"""

import logging
import os
import stat
import time
from pathlib import Path
from typing import Final

from media.unfinished import UNFINISHED, unfinished_beside
from queue_schemas.errors import ErrorCode
from storage.layout import ATTEMPT_FOLDER, FILM, STORE_KEY
from storage.local import TEMPORARY
from worker.errors import WorkerError
from worker.own_names import REFERENCES, RUNS, SPOOL

log = logging.getLogger(__name__)

STALE_SECONDS: Final = 86_400.0
_OWN_FOLDERS: Final = (REFERENCES, RUNS, SPOOL)
_REMEDY: Final = "name another folder by H3_OUTPUT_DIR / --output-dir"


class OutputRootError(WorkerError):
    """Raised when films cannot be written to the output root."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, root: Path, fault: str, *, remedy: str = _REMEDY) -> None:
        super().__init__(f"films cannot be made in {root}: {fault}; {remedy}")
        self.root = root


def check_output_root(root: Path) -> None:
    """See that an engine can have the folder. Raises OutputRootError."""
    check_writable(root)
    if (
        root / STORE_KEY
    ).is_file():  # a stored film has the same name below it, and would go with its original
        raise OutputRootError(root, "it is a store")
    for name in _OWN_FOLDERS:
        if os.path.lexists(root / name) and not (root / name).is_dir():
            raise OutputRootError(root, f"{name} in it is no folder")


def check_writable(folder: Path, *, remedy: str = _REMEDY) -> None:
    """Make the folder and write a probe. Raises OutputRootError."""
    probe = unfinished_beside(folder / "film.mp4")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"h3")
        probe.unlink()
    except (FileExistsError, NotADirectoryError):
        raise OutputRootError(folder, "a part of this path is no folder", remedy=remedy) from None
    except OSError as error:
        fault = (error.strerror or type(error).__name__).lower()
        raise OutputRootError(folder, fault, remedy=remedy) from error


def remove_leftovers(root: Path, *, now: float | None = None) -> int:
    """Remove what nobody has touched for a day; return how many files. No link is followed."""
    before = (time.time() if now is None else now) - STALE_SECONDS
    removed = _remove_from(root, "", before=before, deeper=False)
    removed += sum(_remove_from(root, name, before=before, deeper=True) for name in _OWN_FOLDERS)
    if removed:
        log.info("removed %d files that killed attempts left in %s", removed, root)
    return removed


def _remove_from(root: Path, name: str, *, before: float, deeper: bool) -> int:
    if not (root / name).is_dir():
        return 0
    removed = 0
    for place, folders, files, descriptor in os.fwalk(root / name, topdown=not deeper, follow_symlinks=False):
        if not deeper:
            folders.clear()
        is_attempt = ATTEMPT_FOLDER.fullmatch(Path(place).relative_to(root).as_posix())
        own = [file for file in files if _is_unfinished(file) or (is_attempt and file == FILM)]
        removed += sum(_remove(file, descriptor, before=before) for file in own)
        if is_attempt and own:
            prune(Path(place), root)
    return removed


def _remove(file: str, descriptor: int, *, before: float) -> bool:
    try:
        found = os.stat(file, dir_fd=descriptor, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or found.st_mtime >= before:
            return False
        os.unlink(file, dir_fd=descriptor)
    except FileNotFoundError:  # another engine that shares the folder was quicker
        return False
    return True


def _is_unfinished(file: str) -> bool:
    return any(name.fullmatch(file) for name in (UNFINISHED, TEMPORARY))


def prune(folder: Path, root: Path) -> None:
    """Remove folders that are empty now, up to the root."""
    while folder != root and folder.is_relative_to(root):
        try:
            folder.rmdir()
        except OSError:  # not empty: another attempt's
            return
        folder = folder.parent
