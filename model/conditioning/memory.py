"""The first level: tensors in host memory, bounded in bytes, the least recently used ones given up first."""

from collections import OrderedDict

from torch import Tensor


class MemoryLevel:
    """Used by one thread at a time."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._entries: OrderedDict[str, tuple[Tensor, ...]] = OrderedDict()

    def get(self, key: str) -> tuple[Tensor, ...] | None:
        """Return what is kept, which nobody may change."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: str, *tensors: Tensor) -> None:
        """Keep tensors on the host; what is larger than the bound is not kept."""
        self._forget(key)
        if _size(tensors) > self.max_bytes:
            return
        while self.num_bytes + _size(tensors) > self.max_bytes:
            self._forget(next(iter(self._entries)))
        self._entries[key] = tensors
        self.num_bytes += _size(tensors)

    def _forget(self, key: str) -> None:
        self.num_bytes -= _size(self._entries.pop(key, ()))


def _size(tensors: tuple[Tensor, ...]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
