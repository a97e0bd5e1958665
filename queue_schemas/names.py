"""Names that people choose for checkpoints, LoRAs and nodes, and what a file is whatever it is called."""

from typing import Annotated, Final, Literal

from pydantic import Field

from queue_schemas import limits
from queue_schemas.base import Told

NAME_PATTERN: Final = rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{limits.NAMED_CHARACTERS - 1}}}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]

TransformerTask = Literal["fl2va", "ref2va"]
"""What a transformer, or a LoRA, was trained for."""


class FileIdentity(Told):
    """What tells one file from another."""

    header_sha256: str
    """SHA-256 over a safetensors file's length prefix and JSON header; of a tokenizer, over its content."""
    sample_sha256: str | None = None
    """SHA-256 over the header and blocks spread over the payload; tells a fine-tune from its base."""

    @property
    def identity(self) -> str:
        """What nodes of a fleet compare: equal for equal files, whatever they are called."""
        return f"{self.header_sha256}.{self.sample_sha256 or ''}"
