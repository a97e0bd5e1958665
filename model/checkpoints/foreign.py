"""What a file is that is no safetensors file, told from its first bytes. None of these is ever opened."""

import re
from typing import Final

SNIFFED_BYTES: Final = 64
_MAGIC: Final[tuple[tuple[re.Pattern[bytes], str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), what)
    for pattern, what in (
        (rb"PK\x03\x04", "a zip archive, perhaps a PyTorch .pt or .ckpt file; convert it to safetensors"),
        (rb"\x80[\x02-\x05]", "a pickle, which this project never opens; convert it to safetensors"),
        (rb"GGUF", "a GGUF file, which is not read here"),
        (rb"\x89HDF", "an HDF5 file, which is not read here"),
        (rb"\x1f\x8b", "a gzip archive; unpack it"),
        (rb"version https://git-lfs", "a Git LFS pointer, not the file; fetch that with git lfs pull"),
        (rb"\s*(<!doctype|<html)", "a saved web page, not the file that it links to; download that"),
        (rb"\s*<\?xml", "an XML answer of a server, not the file; download it again"),
        (rb"\s*[{\[]\s*[\"{\[]", "a JSON text, perhaps an error that a server sent; download the file again"),
        (rb"\0{16}", "nothing but zeros at its start: an interrupted download; fetch it again"),
    )
)


def foreign_kind(start: bytes) -> str | None:
    """Say what a file that starts with these bytes is; None if nobody knows.

    Ask only where the bytes cannot be a header: a header of 640 bytes begins as a pickle does.
    """
    return next((what for pattern, what in _MAGIC if pattern.match(start)), None)
