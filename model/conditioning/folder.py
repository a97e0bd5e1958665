"""The second level: one file per key in a folder, bounded in bytes, the least recently used given up first.

Several processes may share the folder: a file appears under its name whole or not at all, whatever is
killed, and removing one twice is no fault. Use is kept as the file's time of change. A folder that takes no
file, as on a full disk, is given up with one warning: no job fails for its cache. Knows bytes, no tensors.
"""

import errno
import logging
import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

FREE_BYTES: Final = 1_000_000_000
"""What a disk keeps for films."""
STALE_SECONDS: Final = 3600.0
"""After which an unfinished file's writer must be dead."""
_ENTRY: Final = re.compile(r"[0-9a-f]{64}\.safetensors")
_UNFINISHED: Final = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{16}\.part")


class FolderLevel:
    """Made without a fault, whatever the folder is."""

    name = "folder"

    def __init__(self, folder: Path, *, max_bytes: int, free_bytes: int = FREE_BYTES) -> None:
        self._folder, self._max_bytes, self._free_bytes = folder, max_bytes, free_bytes
        self._is_on = True
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._give_up(error)

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        """Return the entry, at most one byte more than the limit, and note that it was used."""
        if not self._is_on:
            return None
        path = self._path(key)
        try:
            with path.open("rb") as file:
                data = file.read(limit_bytes + 1)
            os.utime(path)
        except FileNotFoundError:  # or removed by another process meanwhile
            return None
        except OSError as error:
            log.warning("conditioning cache: %s cannot be read: %s", path, error.strerror)
            self.drop(key)
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        """Write an entry, unless it is larger than the bound, and remove what the bound no longer allows."""
        if not self._is_on or len(data) > self._max_bytes:
            return
        unfinished = self._folder / f".{key}.{secrets.token_hex(8)}.part"
        try:
            if shutil.disk_usage(self._folder).free - len(data) < self._free_bytes:
                raise OSError(errno.ENOSPC, f"less than {self._free_bytes / 1e9:g} GB would be left")
            try:
                unfinished.write_bytes(data)
                unfinished.replace(self._path(key))
            finally:
                unfinished.unlink(missing_ok=True)
            self._trim()
        except OSError as error:
            self._give_up(error)

    def drop(self, key: str) -> None:
        """Remove an entry that is no good; its next writer replaces what cannot be removed."""
        with suppress(OSError):
            self._path(key).unlink()

    def _trim(self) -> None:
        """Remove the oldest entries until the bound holds, unfinished files of living writers included."""
        entries, total, now = [], 0, time.time()
        with os.scandir(self._folder) as listing:
            for file in listing:
                unfinished = _UNFINISHED.fullmatch(file.name)
                if not unfinished and not _ENTRY.fullmatch(file.name):
                    continue
                with suppress(FileNotFoundError):
                    found = file.stat(follow_symlinks=False)
                    if unfinished and found.st_mtime < now - STALE_SECONDS:
                        Path(file.path).unlink()
                        continue
                    total += found.st_size
                    if not unfinished:
                        entries.append((found.st_mtime_ns, found.st_size, Path(file.path)))
        for _, size, path in sorted(entries):
            if total <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _give_up(self, error: OSError) -> None:
        self._is_on = False
        log.warning(
            "conditioning cache: %s takes no entries and is not used until the next start: %s; make room, or"
            " name another folder by H3_CONDITIONING_DIR / --conditioning-dir",
            self._folder,
            error.strerror,
        )

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.safetensors"
