"""The seam of storage: few verbs on keys, one of them conditional.

Keys are relative, `/`-separated and checked by `layout.check_key`; no store sees a path it did not build.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from queue_schemas.benchmark import OutputFile


class ArtifactStore(Protocol):
    """Somewhere that keeps outputs, records and manifests."""

    @property
    def url(self) -> str:
        """Address to show a person; holds no secret."""

    def put_bytes(self, key: str, data: bytes) -> OutputFile:
        """Write whole or not at all, replacing what was there. Raises StorageUnavailableError."""

    def put_file(self, key: str, source: Path) -> OutputFile:
        """Stream a file in, whole or not at all, with size and SHA-256. Raises StorageUnavailableError."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Create `key`; False, with nothing changed, when it exists. At most one caller ever gets True.

        Where `conditional_writes` says no, that holds only among callers who take turns, by a lock elsewhere.
        """

    def conditional_writes(self) -> bool:
        """Try whether `put_if_absent` is decided by the store itself; this writes a small probe.

        Raises StorageUnavailableError when the store cannot be written at all.
        """

    def read_bytes(self, key: str, *, limit_bytes: int) -> bytes | None:
        """Return the content, or None when there is no such key; refuse one over the limit."""

    def open(self, key: str) -> BinaryIO:
        """Open for streaming. Raises ArtifactMissingError."""

    def list(self, prefix: str) -> Iterator[str]:
        """Yield every key that starts with `prefix`, in order; names that are no keys are left out."""

    def names(self, prefix: str) -> Iterator[str]:
        """Yield as `list` does, and also what is no key: somebody else put it there. Hidden names are not."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Yield every folder whose name starts with `prefix` and goes no deeper, in order; looks into none.

        The folders of `runs/ab` are all `runs/ab...`, those of `runs/ab/` lie in that one. Keys only.
        """

    def locate(self, key: str) -> str:
        """Return a path or link that a person can open; a link is a secret for as long as it works."""

    def remove_abandoned(self, *, older_than_seconds: float) -> int:
        """Remove what writers that died left unfinished longer ago than this; return how many."""
