"""Receipts: proof that every reference had rows in the sequence, and what became of its file.

Made by the engine after encoding, kept in result and manifest. A hash is SHA-256 over the values' bytes as
float32, row-major, little-endian.
"""

from queue_schemas.base import Lax, Told
from queue_schemas.references import Kind


class SoundReceipt(Told):
    """A clip's sound, its own or another file's."""

    label: str
    """`<Audio 1>`."""
    sha256: str | None
    """Of its file; None where it is the clip's own."""
    changes: list[str] = []
    samples: int
    """Per channel at 32 kHz, as encoded."""
    tokens: int
    """Packed rows, both channels."""
    latent_sha256: str


class ReferenceReceipt(Told):
    """One reference or keyframe, in packed order."""

    place: str
    """`references[0]`, `first_frame`, `last_frame`."""
    label: str
    """What the prompt may call it: `<Picture 1>`, `<Video 1>`, `<Audio 1>`."""
    kind: Kind
    sha256: str
    changes: list[str] = []
    """What was changed in the file to encode it, one sentence each."""
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    """Pixels and frames as encoded; None for a sound."""
    samples: int | None = None
    """Per channel at 32 kHz; None but for a sound."""
    text_tokens: int
    """Label and vision block in the prompt's stream."""
    tokens: int
    """Packed rows, a clip's sound included."""
    rows: Lax[tuple[int, int]]
    """First packed row, and the one after the last."""
    latent_sha256: str
    sound: SoundReceipt | None = None


class PromptReceipt(Told):
    """What the text encoder made of prompt and references."""

    tokens: int
    """All text rows, those of labels and vision blocks included."""
    features_sha256: str
