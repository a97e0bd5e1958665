"""Gives a module on `meta` what a file stores for it; quantised linears are exchanged on the way."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from model.checkpoints.stored import StoredModule
from model.dit.streaming import to_pinned
from model.loading.matching import Piece, full
from model.loading.tensors import ValueCheck
from model.quant.exchange import exchange
from model.quant.rows import concat_rows, take_rows

Read = Callable[[str], Tensor]
"""A tensor's name in the file to its content, in the stored dtype, where it is to stay."""
RowOrder = Callable[[str], Tensor | None]
"""Our module to the order in which the file's rows of it are taken; None: as they lie."""


def assign(
    module: nn.Module,
    pieces: Iterable[Piece],
    read: Read,
    *,
    source: Path,
    dtypes: Mapping[str, torch.dtype],
    row_order: RowOrder = lambda name: None,
    defaults: Mapping[str, Tensor] | None = None,
    in_host_memory: Callable[[str], bool] = lambda name: False,
) -> None:
    """Read and assign piece by piece; plain tensors are cast to `dtypes` (by our names), packed ones stay.

    `defaults` are for what the file leaves out; modules that are to lie `in_host_memory` are taken off the
    GPU, where they were read to be checked. Raises CheckpointFileError for values that nobody trained.
    """
    check = ValueCheck(source)
    for name, tensor in (defaults or {}).items():
        parent, _, suffix = name.rpartition(".")
        _put(module.get_submodule(parent), suffix, tensor)
    for piece in pieces:
        stored = _gather(piece, read, row_order(piece.name))
        packed = {suffix: stored.pop(suffix) for suffix in piece.packed & stored.keys()}
        cast = {suffix: tensor.to(dtypes[full(piece.name, suffix)]) for suffix, tensor in stored.items()}
        for suffix, tensor in (cast | packed).items():
            check.add(full(piece.name, suffix), tensor)
        if in_host_memory(piece.name):
            check.refuse()  # while it is on the GPU
            cast, packed = ({key: to_pinned(t) for key, t in each.items()} for each in (cast, packed))
        for suffix, tensor in cast.items():
            _put(module.get_submodule(piece.name), suffix, tensor)
        if piece.marker is not None:
            dtype = dtypes[full(piece.name, "weight")]
            exchange(module, piece.name, piece.marker, packed, dtype=dtype)
    check.refuse()
    assert not any(parameter.is_meta for parameter in module.parameters()), "the match was strict"
    module.eval()


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
