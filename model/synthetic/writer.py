"""One described checkpoint file on disk: all of it or nothing. Streams its tensors; imports no torch.

A sparse file has the header and the markers of a real one and holes elsewhere: what a header says can be read
from it in a moment, at any size, and nothing can be loaded.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from model.checkpoints.descriptions import HeaderDescription, TensorSpec

METADATA: Final = {"weights": "random"}
"""In every file that can be loaded, so that no record takes its weights for real ones."""

Content = Callable[[TensorSpec], memoryview]
"""The bytes of a tensor, or of its first rows: what is short of the tensor's length is repeated."""
OnBytes = Callable[[int], None]


def write_file(
    path: Path,
    description: HeaderDescription,
    content: Content,
    *,
    on_bytes: OnBytes = lambda count: None,
) -> None:
    """Write every tensor's bytes; `on_bytes` is told how many more there are. Raises OSError."""
    with whole_file(path) as file:
        file.write(header_of(description, sparse=False))
        for tensor in description.tensors:
            data, left = content(tensor), tensor.end - tensor.begin
            while left:
                written = file.write(data[:left])
                left -= written
                on_bytes(written)


def write_sparse(path: Path, description: HeaderDescription) -> None:
    """Write the published header and the markers, and give the file the length of a real one."""
    header = header_of(description, sparse=True)
    with whole_file(path) as file:
        file.truncate(len(header) + description.payload_bytes)
        file.write(header)
        for tensor in description.tensors:
            if tensor.marker is not None:
                file.seek(len(header) + tensor.begin)
                file.write(tensor.marker)


def header_of(description: HeaderDescription, *, sparse: bool) -> bytes:
    """Return a file's first bytes.

    Where the published header has metadata whose text is not known, spaces stand for it: the payload of a
    full-size file begins, and the file ends, where the published one's does.
    """
    header = description.header_bytes(None if sparse else METADATA)
    if description.size == "tiny":
        return header
    length = max(len(header) - 8, description.expect["header_len"])
    return length.to_bytes(8, "little") + header[8:].ljust(length)


def file_bytes(description: HeaderDescription, *, sparse: bool) -> int:
    return len(header_of(description, sparse=sparse)) + description.payload_bytes


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Give a new file that takes `path`'s place when the block ends, and vanishes when it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        partial.chmod(0o644)  # mkstemp makes it for its owner alone; this one is read by any engine
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
