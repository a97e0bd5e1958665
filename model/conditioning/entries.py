"""One entry as bytes: a safetensors file of one tensor, which says under which key it may be believed.

What is not exactly what was asked for, whole and unchanged, is refused: a wrong entry would be a wrong film.
"""

import hashlib
import json
from typing import Final

import torch
from torch import Tensor

from model.checkpoints.header_text import HeaderTextError, TensorEntry, parse_header_text
from model.errors import ModelError
from model.loading.tensors import DTYPES

NAME: Final = "features"
HEADER_BYTES: Final = 4096
"""More than the header of an entry ever needs."""


class EntryDamagedError(ModelError):
    """Raised when bytes are not the entry that they should be."""


def pack_entry(key: str, features: Tensor) -> bytes:
    """Return the entry of `features`, a tensor on the host; the same bytes for the same features.

    Written here, since the reference library has no fixed order of metadata.
    """
    payload = features.contiguous().view(torch.uint8).numpy().tobytes()
    (dtype,) = (name for name, dtype in DTYPES.items() if dtype == features.dtype)
    header = json.dumps(
        {
            "__metadata__": {"key": key, "sha256": hashlib.sha256(payload).hexdigest()},
            NAME: {"dtype": dtype, "shape": list(features.shape), "data_offsets": [0, len(payload)]},
        },
        separators=(",", ":"),
    ).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + payload


def unpack_entry(data: bytes, *, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return the features under `key`. Raises EntryDamagedError."""
    start = 8 + int.from_bytes(data[:8], "little")
    payload = memoryview(data)[start:]
    try:
        tensors, metadata = parse_header_text(data[8:start])
    except HeaderTextError as error:
        raise EntryDamagedError(f"it is no entry: {error}") from None
    if metadata.get("key") != key:
        raise EntryDamagedError("it is another key's")
    found = tensors.get(NAME, TensorEntry("", (), 0, 0))
    form = found.shape, DTYPES.get(found.dtype), found.begin, found.end
    if len(tensors) != 1 or form != (shape, dtype, 0, len(payload)):
        raise EntryDamagedError(f"it does not hold {dtype} {list(shape)} and nothing else")
    if metadata.get("sha256") != hashlib.sha256(payload).hexdigest():
        raise EntryDamagedError("its content does not have the hash that was written with it")
    return torch.frombuffer(bytearray(payload), dtype=dtype).reshape(shape)


def entry_bytes_max(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return how long an entry of these features can be at most."""
    return HEADER_BYTES + torch.Size(shape).numel() * dtype.itemsize
