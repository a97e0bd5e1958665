"""Gives a module on `meta` what a file stores for it; quantised linears are exchanged on the way."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from model.checkpoints.stored import StoredModule
from model.dit.streaming import to_pinned
from model.loading.matching import Piece, full
from model.loading.tensors import DTYPES, ValueCheck
from model.quant.exchange import exchange
from model.quant.rows import concat_rows, take_rows

Read = Callable[[str], Tensor]
"""A tensor's name in the file to its content, in the stored dtype, where it is to stay."""
RowOrder = Callable[[str], Tensor | None]
"""Our module to the order in which the file's rows of it are taken; None: as they lie."""


class Assignment:
    """One module being given its values, piece by piece; plain tensors are cast, packed ones stay."""

    def __init__(
        self,
        module: nn.Module,
        *,
        source: Path,
        dtypes: Mapping[str, torch.dtype],
        row_order: RowOrder = lambda name: None,
    ) -> None:
        """`dtypes` are those to compute in, by our names."""
        self._module, self._dtypes, self._row_order = module, dtypes, row_order
        self._check = ValueCheck(source)

    def is_as_stored(self, piece: Piece) -> bool:
        """Say whether the file's tensors become the module's without a look at their bytes."""
        if len(piece.parts) > 1 or self._row_order(piece.name) is not None:
            return False
        return all(
            suffix in piece.packed or DTYPES[entry.dtype] is self._dtypes[full(piece.name, suffix)]
            for suffix, (_, entry) in piece.parts[0].tensors.items()
        )

    def give_defaults(self, tensors: Mapping[str, Tensor]) -> None:
        """Give what the file may leave out, in the dtypes that compute."""
        for name, tensor in tensors.items():
            parent, _, suffix = name.rpartition(".")
            _put(self._module.get_submodule(parent), suffix, tensor)

    def give(self, piece: Piece, read: Read) -> None:
        """Give a piece; its values are looked at by the next `check`."""
        self._put(piece, *self._read(piece, read))

    def give_pinned(self, piece: Piece, read: Read) -> None:
        """Give a piece that is to lie in host memory; it is checked on the device that it was read to.

        Raises CheckpointFileError.
        """
        cast, packed = self._read(piece, read)
        self.check()
        self._put(piece, *({key: to_pinned(t) for key, t in each.items()} for each in (cast, packed)))

    def check(self) -> None:
        """Raise CheckpointFileError for values that nobody trained, in what was given since the last time."""
        self._check.refuse()

    def finish(self) -> None:
        """Leave the module ready to compute."""
        assert not any(parameter.is_meta for parameter in self._module.parameters()), "the match was strict"
        self._module.eval()

    def _read(self, piece: Piece, read: Read) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        stored = _gather(piece, read, self._row_order(piece.name))
        packed = {suffix: stored.pop(suffix) for suffix in piece.packed & stored.keys()}
        cast = {
            suffix: tensor.to(self._dtypes[full(piece.name, suffix)]) for suffix, tensor in stored.items()
        }
        for suffix, tensor in (cast | packed).items():
            self._check.add(full(piece.name, suffix), tensor)
        return cast, packed

    def _put(self, piece: Piece, cast: Mapping[str, Tensor], packed: Mapping[str, Tensor]) -> None:
        for suffix, tensor in cast.items():
            _put(self._module.get_submodule(piece.name), suffix, tensor)
        if piece.marker is not None:
            dtype = self._dtypes[full(piece.name, "weight")]
            exchange(self._module, piece.name, piece.marker, packed, dtype=dtype)


def _put(owner: nn.Module, suffix: str, tensor: Tensor) -> None:
    """Give a module one tensor; `load_state_dict` looks through all names at each level."""
    is_parameter = isinstance(getattr(owner, suffix), nn.Parameter)
    setattr(owner, suffix, nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor)


def _gather(piece: Piece, read: Read, order: Tensor | None) -> dict[str, Tensor]:
    parts = [_read_part(part, read) for part in piece.parts]
    stored = (
        parts[0]
        if len(parts) == 1
        else concat_rows(piece.marker, parts, num_rows=[piece.num_rows] * len(parts))
    )
    if order is None:
        return stored
    return take_rows(piece.marker, stored, order.to(stored["weight"].device))


def _read_part(part: StoredModule, read: Read) -> dict[str, Tensor]:
    return {suffix: read(name) for suffix, (name, _) in part.tensors.items()}
