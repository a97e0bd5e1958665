"""Files that were published for H3, and what is known of each: hashes, task, a LoRA's steps and shifts.

`published_files.json` is the data; `load_published` adds a user's own file of the same form. Names are not
proof: other publishers use the same ones for other contents, so a file is known by its hashes.
"""

import functools
import importlib.resources
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from queue_schemas import limits
from queue_schemas.base import Asked, Lax, Version1
from queue_schemas.errors import InvalidRequestError, explain
from queue_schemas.loras import MADE_FOR, MadeFor
from queue_schemas.names import TransformerTask
from queue_schemas.requests import load_json_object

Family = Literal["transformer", "text_encoder", "video_vae", "audio_vae", "lora"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Shift = Annotated[float, Field(gt=0, le=limits.SHIFT_MAX)]


class PublishedFile(Asked):
    """One file; what is not known is left out."""

    name: Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f]{1,200}\.safetensors$")]
    family: Family
    task: TransformerTask | None = None
    """What a transformer was trained for, or a LoRA was trained on."""
    variant: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,99}$")] | None = None
    """Name of the description of its header."""
    size_bytes: Annotated[int, Field(gt=0)] | None = None
    sha256: Sha256 | None = None
    """Of the whole file."""
    header_sha256: Sha256 | None = None
    """Of the 8 length bytes and the JSON text; the same for both tasks of a layout without metadata."""
    source: Annotated[str, Field(max_length=200)] | None = None
    steps: Annotated[int, Field(ge=1, le=limits.STEPS_MAX)] | None = None
    """Model evaluations that a distilled LoRA was made for; so for both shifts."""
    shift_video: Shift | None = None
    shift_audio: Shift | None = None

    def made_for(self, name: str) -> MadeFor:
        """Return what this LoRA was made for, under the name by which a node or a job knows it."""
        fields = self.model_dump(include={"task", *MADE_FOR})
        return MadeFor(name=name, **fields)

    @model_validator(mode="after")
    def _only_a_lora_has_steps(self) -> Self:
        if self.family != "lora" and (self.steps, self.shift_video, self.shift_audio) != (None, None, None):
            raise ValueError("steps and shifts belong to a lora")
        return self


class PublishedFiles(Asked):
    """The registry; no two entries have the same name."""

    schema_version: Version1 = 1
    files: Annotated[Lax[tuple[PublishedFile, ...]], Field(max_length=limits.PUBLISHED_FILES)]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [file.name for file in self.files]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} stands there twice")
        return self

    def named(self, name: str) -> PublishedFile | None:
        return next((file for file in self.files if file.name == name), None)

    def with_sha256(self, sha256: str) -> PublishedFile | None:
        return next((file for file in self.files if file.sha256 == sha256), None)

    def with_header(self, header_sha256: str) -> tuple[PublishedFile, ...]:
        """Return every file with this header identity; several, where both tasks share it."""
        return tuple(file for file in self.files if file.header_sha256 == header_sha256)

    def extended(self, more: "PublishedFiles") -> "PublishedFiles":
        """Return both; an entry of `more` replaces that of the same name."""
        names = {file.name for file in more.files}
        kept = tuple(file for file in self.files if file.name not in names)
        return PublishedFiles(files=kept + more.files)


@functools.cache
def published_files() -> PublishedFiles:
    """Return the registry that this version ships."""
    data = importlib.resources.files("queue_schemas") / "published_files.json"
    return parse_published(data.read_bytes())


def load_published(path: Path) -> PublishedFiles:
    """Return the shipped registry extended by the file at `path`. Raises InvalidRequestError."""
    try:
        with path.open("rb") as file:
            content = file.read(limits.PUBLISHED_BYTES + 1)
        return published_files().extended(parse_published(content))
    except OSError as error:
        raise InvalidRequestError(f"registry {path} cannot be read: {error.strerror}") from None
    except InvalidRequestError as error:
        raise InvalidRequestError(f"registry {path}: {error}") from None


def parse_published(content: bytes) -> PublishedFiles:
    """Raises InvalidRequestError."""
    fields = load_json_object(content, limit_bytes=limits.PUBLISHED_BYTES)
    try:
        return PublishedFiles.model_validate(fields)
    except ValidationError as error:
        known = [*PublishedFiles.model_fields, *PublishedFile.model_fields]
        raise InvalidRequestError(explain(error, known_fields=known)) from None
