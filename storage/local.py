"""`LocalStore`: a folder as artifact store; every write is whole or absent, also after a crash.

A write goes to a hidden temporary file beside its target, is flushed to disk, and only then gets its name:
by rename (replace), or by hard link (create, the one operation that fails when the name exists, on any node
that shares the folder). Names that start with a dot are never keys, so a torn write is never listed or read.
Knows no schema: bytes in, bytes out.
"""

import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Final, Self

from queue_schemas.benchmark import OutputFile
from storage.errors import (
    ArtifactMissingError,
    ArtifactTooLargeError,
    StorageAddressError,
    StorageUnavailableError,
)
from storage.layout import PREFIXES, PROBE_KEY, check_key, check_prefix, is_key

_CHUNK_BYTES = 1024 * 1024
TEMPORARY: Final = re.compile(r"\..+\.[0-9]+\.[0-9a-f]{16}\.tmp")
"""What a write is called until it is whole."""


class LocalStore:
    """Artifacts below one folder, which the first write creates unless the store is known to exist."""

    _below: Path | None = None
    """A folder that is not made; None lets the first write make every one."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))  # the root itself may be a link; below it none may lead out

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def existing(self) -> Self:
        """Return the same store, whose root no write makes: one that is gone is away."""
        store = copy(self)
        store._below = self.root
        return store

    def put_bytes(self, key: str, data: bytes) -> OutputFile:
        write_whole(self._path(key), data, below=self._below)
        return OutputFile(name=key, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def put_file(self, key: str, source: Path) -> OutputFile:
        """As the protocol says; an unreadable `source` raises its own OSError: no fault of the store."""
        target, digest = self._path(key), hashlib.sha256()

        def copy(sink: BinaryIO) -> None:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)

        with source.open("rb") as stream, _translated("write", target):
            with _temporary(target, below=self._below) as temporary:
                _write_new(temporary, copy)
                size = temporary.stat().st_size
                temporary.replace(target)
            _sync_folder(target.parent)
        return OutputFile(name=key, size_bytes=size, sha256=digest.hexdigest())

    def put_if_absent(self, key: str, data: bytes) -> bool:
        target = self._path(key)
        if os.path.lexists(target):
            return False
        with _translated("create", target):
            with _temporary(target, below=self._below) as temporary:
                _write_new(temporary, lambda sink: sink.write(data))
                created = _link_exclusively(temporary, target)
            _sync_folder(target.parent)
        return created

    def conditional_writes(self) -> bool:
        """As the protocol says; without hard links this is an error now, not at the end of a job."""
        target = self._path(PROBE_KEY)
        with (
            _translated("create", target),
            _temporary(target, below=self._below) as first,
            _temporary(target, below=self._below) as second,
            _temporary(target, below=self._below) as name,
        ):
            _write_new(first, lambda sink: sink.write(b"1"))
            _write_new(second, lambda sink: sink.write(b"2"))
            return _link_exclusively(first, name) and not _link_exclusively(second, name)

    def read_bytes(self, key: str, *, limit_bytes: int) -> bytes | None:
        """As the protocol says. Raises ArtifactTooLargeError over the limit, before it is read."""
        try:
            with self.open(key) as stream, _translated("read", self._path(key)):
                data = stream.read(limit_bytes + 1)
        except ArtifactMissingError:
            return None
        if len(data) > limit_bytes:
            raise ArtifactTooLargeError(key, limit_bytes=limit_bytes)
        return data

    def open(self, key: str) -> BinaryIO:
        path = self._path(key)
        if path.is_symlink():  # `_path` has followed the folder; only the last name can still be a link
            self._check_inside(path, key=key)
        with _translated("read", path):
            try:
                # A folder or a pipe under a key's name is no artifact, and opening a pipe would block.
                if not stat.S_ISREG(path.stat().st_mode):
                    raise ArtifactMissingError(key)
                return path.open("rb")
            except (FileNotFoundError, NotADirectoryError):
                raise ArtifactMissingError(key) from None

    def list(self, prefix: str) -> Iterator[str]:
        return filter(is_key, self.names(prefix))

    def names(self, prefix: str) -> Iterator[str]:
        """As the protocol says; of a folder that is no key only the name is told."""
        return self._walk(check_prefix(prefix).rpartition("/")[0], prefix=prefix)

    def folders(self, prefix: str) -> Iterator[str]:
        for name in self._entries(check_prefix(prefix).rpartition("/")[0]):
            if name.endswith("/") and name.startswith(prefix) and is_key(name.removesuffix("/")):
                yield name.removesuffix("/")

    def locate(self, key: str) -> str:
        return str(self._path(key))

    def remove_abandoned(self, *, older_than_seconds: float) -> int:
        """As the protocol says; ages are by this machine's clock, so leave them far above its error."""
        removed, oldest = 0, time.time() - older_than_seconds
        folders = [islice(os.walk(self.root), 1), *(os.walk(self.root / prefix) for prefix in PREFIXES)]
        with _translated("clean", self.root):
            for folder, _, names in chain.from_iterable(folders):
                for path in (Path(folder, name) for name in names if TEMPORARY.fullmatch(name)):
                    with suppress(FileNotFoundError):  # its writer, or another cleaner, was quicker
                        if path.lstat().st_mtime < oldest:
                            path.unlink()
                            removed += 1
        return removed

    def _path(self, key: str) -> Path:
        path = self.root / check_key(key)
        self._check_inside(path.parent, key=key)
        return path

    def _check_inside(self, path: Path, *, key: str) -> None:
        place = Path(os.path.realpath(path))
        if not place.is_relative_to(self.root):
            raise StorageAddressError(f"{key!r} is, or passes, a link that leaves {self.root}")
        if place.is_symlink():
            raise StorageAddressError(f"{key!r} is, or passes, a link that leads to itself in {self.root}")

    def _walk(self, folder: str, *, prefix: str) -> Iterator[str]:
        """Yield every name below `folder` that starts with `prefix`, in order of the whole name."""
        for name in self._entries(folder):
            if name.startswith(prefix):
                whole = name.removesuffix("/")
                if name.endswith("/") and is_key(whole):
                    yield from self._walk(whole, prefix=prefix)
                else:
                    yield whole

    def _entries(self, folder: str) -> Iterator[str]:
        """Yield what lies in `folder` in the order of keys, folders with a slash; no links, none hidden."""
        path = self.root / folder
        try:
            with _translated("list", path), os.scandir(path) as scan:
                entries = [(e.name + "/" * e.is_dir(follow_symlinks=False), e.is_symlink()) for e in scan]
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, is_link in sorted(entries):  # folders sort with their slash, as their keys do
            if not (name.startswith(".") or is_link):
                yield f"{folder}/{name}" if folder else name


def write_whole(target: Path, data: bytes, *, below: Path | None = None) -> None:
    """Write a file whole or not at all, making its folder; `below` is one that is not made.

    Raises StorageUnavailableError.
    """
    with _translated("write", target):
        with _temporary(target, below=below) as temporary:
            _write_new(temporary, lambda sink: sink.write(data))
            temporary.replace(target)
        _sync_folder(target.parent)


@contextmanager
def _temporary(target: Path, *, below: Path | None = None) -> Iterator[Path]:
    """Yield a fresh hidden name beside `target`; nothing of it is left afterwards."""
    _make_folder(target.parent, below=below)
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
    finally:
        with suppress(OSError):  # gone after a rename; on a store that just broke there is nothing to add
            temporary.unlink()


def _write_new(path: Path, write: Callable[[BinaryIO], object]) -> None:
    # Mode 0666 less the umask: other nodes and people read the same folder.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    with os.fdopen(descriptor, "wb") as sink:
        write(sink)
        sink.flush()
        os.fsync(sink.fileno())


def _link_exclusively(temporary: Path, target: Path) -> bool:
    try:
        target.hardlink_to(temporary)
    except FileExistsError:
        # A network file system may repeat a request whose answer was lost: two names mean that ours won.
        return temporary.stat().st_nlink == 2
    return True


def _make_folder(folder: Path, *, below: Path | None) -> None:
    if folder.is_dir():
        return
    if folder == below:
        raise FileNotFoundError(errno.ENOENT, "this folder is gone: mount it again or bring it back")
    _make_folder(folder.parent, below=below)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make a new name survive a power cut; Windows has no such call."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space or name another folder",
    errno.EDQUOT: "the quota is used up: free some space or name another folder",
    errno.EFBIG: "the file is larger than this process or file system may write",
    errno.EROFS: "the file system is read-only: name another folder",
    errno.EACCES: "this user may not: change the folder's owner or mode, or name another folder",
    errno.EPERM: "this is not permitted; a store needs a file system with hard links: name another folder",
    errno.EOPNOTSUPP: "this file system has no hard links: name another folder",
    errno.ENAMETOOLONG: "this path is too long for the file system: name a folder with a shorter one",
    errno.ENOTDIR: "a part of this path is a file, not a folder: name another folder",
    errno.EEXIST: "a part of this path is a file, not a folder: name another folder",
}
_LASTING = _REMEDIES.keys() - {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def _translated(verb: str, path: Path) -> Iterator[None]:
    """Turn an OSError into StorageUnavailableError, except that a missing file stays one when reading."""
    try:
        yield
    except OSError as error:
        if verb in ("read", "list") and isinstance(error, FileNotFoundError | NotADirectoryError):
            raise
        remedy = _REMEDIES.get(error.errno or 0, error.strerror or type(error).__name__)
        is_lasting = error.errno in _LASTING
        raise StorageUnavailableError(f"cannot {verb} {path}: {remedy}", is_lasting=is_lasting) from error
