"""Resident set: a small JSON file that names the files which one node keeps loaded, under one name.

The name is what jobs ask for (`checkpoint`). A file is named as `--checkpoint` and its sisters name one: by a
path, or by its name below the role's folder, with or without `.safetensors`.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from queue_schemas.base import Asked
from queue_schemas.names import Name

FileName = Annotated[str, Field(min_length=1, max_length=1_000)]


class Transformers(Asked):
    """One transformer per task; either serves t2va."""

    fl2va: FileName | None = None
    ref2va: FileName | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.fl2va is None and self.ref2va is None:
            raise ValueError("name a transformer for fl2va, for ref2va, or both")
        return self


class ResidentLora(Asked):
    """A LoRA that jobs may ask for by its name."""

    name: Name
    file: FileName


class ResidentSet(Asked):
    """The content of a set file."""

    name: Name
    transformer: Transformers
    text_encoder: FileName
    tokenizer: FileName | None = None
    """Folder with tokenizer.json; the built-in Qwen vocabulary when left out."""
    video_vae: FileName | None = None
    """The only one in its folder when left out; so for `audio_vae`."""
    audio_vae: FileName | None = None
    loras: list[ResidentLora] = []
