"""A cheap identity of a file's values: SHA-256 over its header and blocks spread evenly over its payload.

A header names shapes and dtypes only, so a fine-tune has its base's. Hashing 66 GB takes minutes; 4 MiB take
milliseconds, and weights that were trained differ in every block. A file of one changed byte may pass.
"""

import hashlib
from typing import Final

from model.checkpoints.header import Header

BLOCK_BYTES: Final = 64 * 1024
BLOCKS: Final = 64
"""4 MiB in all; a payload that is no larger is read whole."""


def sample_sha256(header: Header) -> str:
    """Return the hash over the header's identity, the file's size and at most 64 blocks of its payload."""
    digest = hashlib.sha256(f"{header.sha256} {header.size_bytes}\n".encode())
    with header.path.open("rb", buffering=0) as file:  # unbuffered: a buffer would read past each block
        payload = 8 + int.from_bytes(file.read(8), "little")
        for offset in block_offsets(header.size_bytes - payload):
            file.seek(payload + offset)
            digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


def block_offsets(payload_bytes: int) -> list[int]:
    """Return where blocks begin: the first and the last one always, the others evenly between them."""
    blocks = min(BLOCKS, -(-payload_bytes // BLOCK_BYTES))
    if blocks * BLOCK_BYTES >= payload_bytes:
        return [block * BLOCK_BYTES for block in range(blocks)]
    last = payload_bytes - BLOCK_BYTES
    return [last * block // (blocks - 1) for block in range(blocks)]
