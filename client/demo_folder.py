"""The folder of `h3 demo`: its own by a marker, held by one demo at a time, emptied of its own work only.

The demo works in a folder that is absent, empty or marked, and writes the marker before anything else, so a
store of real films is never taken for its own. `--fresh` removes the runs of the demo's sweeps and nothing
that anybody else put beside them.
"""

import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from client.errors import DamagedArtifactError, DemoFolderError
from client.outcomes import read_sweep
from queue_schemas.sweeps import Sweep
from storage.errors import StorageError
from storage.local import LocalStore

MARKER = ".h3-demo"
_OWN_FILES = ("summary.json", "node.log")
_UNFINISHED = re.compile(r"\..+\.[0-9]+\.[0-9a-f]{16}\.tmp")
"""What a writer of `LocalStore` leaves when it is killed."""


@contextmanager
def claimed(
    folder: Path, *, fresh: bool, own_runs: Collection[str], own_prompts: Collection[str]
) -> Iterator[None]:
    """Hold the folder for one demo at a time; its own work is removed first where `fresh`.

    Raises DemoFolderError.
    """
    import fcntl  # noqa: PLC0415 - not on Windows, where no node runs either

    _check_folder(folder, fresh=fresh)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        marker = os.open(folder / MARKER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise DemoFolderError(f"cannot use {folder}: {error.strerror}; name another by --storage") from None
    try:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoFolderError(f"another demo is at work in {folder}; wait for it") from None
        if fresh:
            _remove_own(folder, own_runs=own_runs, own_prompts=own_prompts)
        yield
    finally:
        os.close(marker)


def _check_folder(folder: Path, *, fresh: bool) -> None:
    if folder.is_symlink():
        raise DemoFolderError(f"{folder} is a link; the demo works in a real folder only")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise DemoFolderError(f"{folder} is a file; name a folder by --storage")
    marker = folder / MARKER
    if marker.is_file() and not marker.is_symlink():
        return
    names = sorted(
        (entry.name for entry in folder.iterdir()), key=lambda name: (name in ("runs", "sweeps"), name)
    )
    if names:
        instead = "so it is not emptied" if fresh else "so it does not work in there"
        raise DemoFolderError(
            f"{folder} was not made by the demo (it holds {names[0]!r}), {instead};"
            " name an empty or new folder by --storage"
        )


def _remove_own(folder: Path, *, own_runs: Collection[str], own_prompts: Collection[str]) -> None:
    """Remove what demos of this and earlier versions left: their sweeps tell their runs."""
    store, runs = LocalStore(folder), set(own_runs)
    for place in _folders(folder / "sweeps"):
        try:
            sweep = read_sweep(store, place.name)
        except (DamagedArtifactError, StorageError):
            continue  # somebody else's, or unreadable: not ours to remove
        if sweep is not None and _is_own(sweep, own_prompts):
            runs |= {run.run_id for run in sweep.runs}
            shutil.rmtree(place)
        elif sweep is None and all(_UNFINISHED.fullmatch(entry.name) for entry in place.iterdir()):
            shutil.rmtree(place)  # a demo was killed before its sweep had its name
    for place in _folders(folder / "runs"):
        if place.name in runs:
            shutil.rmtree(place)
    unfinished = [entry.name for entry in folder.iterdir() if _UNFINISHED.fullmatch(entry.name)]
    for name in (*_OWN_FILES, *unfinished):
        (folder / name).unlink(missing_ok=True)


def _is_own(sweep: Sweep, prompts: Collection[str]) -> bool:
    return all(
        run.job.get("prompt") in prompts and run.job.get("checkpoint") == "h3-tiny" for run in sweep.runs
    )


def _folders(parent: Path) -> list[Path]:
    """Return the real folders in `parent`; links are neither followed nor removed."""
    if parent.is_symlink() or not parent.is_dir():
        return []
    return [entry for entry in parent.iterdir() if entry.is_dir() and not entry.is_symlink()]
