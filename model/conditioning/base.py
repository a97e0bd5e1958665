"""The seam between the cache and what keeps its entries beyond this process: `Level`. Knows no tensors."""

from typing import Protocol


class Level(Protocol):
    """Somewhere that keeps entries as bytes. Nothing here fails: what goes wrong is logged and a miss."""

    @property
    def name(self) -> str: ...

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        """Return an entry, unchecked, and more than the limit only by a byte."""

    def put(self, key: str, data: bytes) -> None: ...

    def drop(self, key: str) -> None:
        """Have no longer what `get` returned."""
