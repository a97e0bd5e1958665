"""`ReferenceFolder`: the files that jobs of one node were given, each once, by the hash of its content.

    <output root>/references/<sha256>

Pullers and engine share it without speaking to each other: a file gets its name when it is whole, and whoever
uses one holds it by a shared lock, which the kernel takes back from a process that was killed. What nobody
holds is let go of, the longest unused first, as soon as all of it is more than the folder may have.
Knows no job and no source.
"""

import errno
import fcntl
import hashlib
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from queue_schemas.errors import ErrorCode
from worker.errors import WorkerError
from worker.own_names import REFERENCES

log = logging.getLogger(__name__)

KEPT_BYTES: Final = 8 * 1024**3
"""Of all references of a node; those of one job have half a GiB at most."""
_TRIES: Final = 100
"""Of naming a file before somebody else lets go of it; only a broken disk needs them all."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class ReferenceFolderError(WorkerError):
    """Raised when the folder takes no file, as on a full disk; the same may succeed later."""

    code = ErrorCode.STORAGE_UNAVAILABLE

    def __init__(self, folder: Path, fault: str) -> None:
        super().__init__(
            f"references cannot be kept in {folder}: {fault}; make room there, or see that it can be written"
        )
        self.folder = folder


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A whole file that stays as long as it is held; `close` lets go of it."""

    path: Path
    size_bytes: int
    _descriptor: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)


class ReferenceFolder:
    """The references below one engine's output root."""

    def __init__(self, root: Path, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._folder = root / REFERENCES
        self._kept_bytes = kept_bytes

    def hold(self, sha256: str) -> HeldFile | None:
        """Return the file with this content, if it is here; one that is damaged is removed."""
        path = self._folder / sha256
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # not there; what else is wrong with the folder is seen by whoever writes to it
            return None
        held = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits only for one who is letting go of it
            held = self._is_whole(path, descriptor, sha256=sha256)
            if not held:
                return None
            os.utime(descriptor)  # used now
            return HeldFile(path, os.fstat(descriptor).st_size, descriptor)
        finally:
            if not held:
                os.close(descriptor)

    @contextmanager
    def receiving(self) -> Iterator[Path]:
        """Yield a new name to write to; nothing of it is left afterwards, unless `keep` was called.

        Raises ReferenceFolderError for every OSError of the block: what comes from elsewhere has its own.
        """
        temporary = self._folder / f".{REFERENCES}.{os.getpid()}.{secrets.token_hex(8)}.tmp"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            yield temporary
        except OSError as error:
            if error.errno in _FULL:
                self._let_go(most_bytes=0)
            raise ReferenceFolderError(self._folder, (error.strerror or "no file").lower()) from error
        finally:
            with suppress(OSError):
                temporary.unlink()

    def keep(self, temporary: Path, sha256: str) -> HeldFile:
        """Give a written file its name, durably, and hold it; of equal ones the first stays."""
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        for _ in range(_TRIES):
            with suppress(FileExistsError):  # somebody was quicker; a rename would take the name from theirs
                (self._folder / sha256).hardlink_to(temporary)
            held = self.hold(sha256)
            if held is not None:
                self._let_go(most_bytes=self._kept_bytes)
                return held
        raise OSError(errno.EIO, "what is written reads back as something else")

    def _is_whole(self, path: Path, descriptor: int, *, sha256: str) -> bool:
        """Compare name and content: it may have been let go of before it was locked, or be torn."""
        with suppress(FileNotFoundError), os.fdopen(os.dup(descriptor), "rb") as file:
            if not os.path.samestat(os.fstat(descriptor), path.lstat()):
                return False
            if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                return True
            log.warning("the reference %s is damaged and was removed", sha256)
            path.unlink()
        return False

    def _let_go(self, *, most_bytes: int) -> None:
        """Remove what nobody holds, the longest unused first, until the rest is no more than `most_bytes`."""
        with suppress(OSError), os.scandir(self._folder) as scan:
            found = [
                (entry.stat(follow_symlinks=False), entry.path) for entry in scan if entry.name[0] != "."
            ]
            found.sort(key=lambda each: each[0].st_mtime_ns)
            over = sum(status.st_size for status, _ in found) - most_bytes
            for status, path in found:
                if over <= 0:
                    return
                if _remove_unless_held(Path(path)):
                    over -= status.st_size


def _remove_unless_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # somebody else was quicker, or it is none of ours
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), path.lstat()):  # another file has the name by now
            return False
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
