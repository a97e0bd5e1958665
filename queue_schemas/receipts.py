"""Receipts: proof that every reference had rows in the sequence, and what became of its file.

Made by the engine after encoding, kept in result and manifest. A hash is SHA-256 over the values' bytes as
float32, row-major, little-endian.
"""

from queue_schemas.base import Lax, Told
from queue_schemas.encoded_references import EncodedReference, EncodedSound


class SoundReceipt(EncodedSound):
    """A clip's sound, its own or another file's."""

    latent_sha256: str


class ReferenceReceipt(EncodedReference):
    """One reference or keyframe, in packed order."""

    rows: Lax[tuple[int, int]]
    """First packed row, and the one after the last."""
    latent_sha256: str
    sound: SoundReceipt | None = None


class PromptReceipt(Told):
    """What the text encoder made of prompt and references."""

    tokens: int
    """All text rows, those of labels and vision blocks included."""
    features_sha256: str
