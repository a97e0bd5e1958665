"""What a reference or keyframe is as the model takes it: said before anything runs, and proved afterwards."""

from queue_schemas.base import Told
from queue_schemas.references import Kind


class EncodedSound(Told):
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


class EncodedReference(Told):
    """One reference or keyframe, in packed order."""

    place: str
    """`references[0]`, `first_frame`, `last_frame`."""
    label: str
    """What the prompt may call it: `<Picture 1>`, `<Video 1>`, `<Audio 1>`."""
    kind: Kind
    sha256: str
    changes: list[str] = []
    """What is changed in the file to encode it, one sentence each."""
    width: int | None = None
    height: int | None = None
    frames: int | None = None
    """Pixels and frames as encoded; None for a sound."""
    samples: int | None = None
    """Per channel at 32 kHz; None but for a sound."""
    text_tokens: int
    """Label and vision block in the prompt's stream."""
    tokens: int
    """Packed rows beside those, a clip's sound included."""
