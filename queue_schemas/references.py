"""What a job is given besides its prompt: pictures, clips and sounds, by where they lie and what they hold.

A source is a key of the fleet's store (`references/<sha256>.<ext>`), an https link, or, until a client or a
service has stored it, a local path. Only the SHA-256 counts for a job's identity. Knows no file's content.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from queue_schemas import limits
from queue_schemas.base import Asked, Text
from queue_schemas.errors import UNTOLD_TAG

Kind = Literal["image", "video", "audio"]
KINDS: Final[tuple[Kind, ...]] = ("image", "video", "audio")
KEYFRAMES: Final = ("first_frame", "last_frame")
MEDIA_FIELDS: Final = ("references", *KEYFRAMES)
"""Fields of a job that name files."""
KIND_MAXIMA: Final[dict[Kind, int]] = {
    "image": limits.REFERENCE_IMAGES,
    "video": limits.REFERENCE_VIDEOS,
    "audio": limits.REFERENCE_AUDIOS,
}
KIND_BYTES: Final[dict[Kind, int]] = {
    "image": limits.IMAGE_BYTES,
    "video": limits.VIDEO_BYTES,
    "audio": limits.AUDIO_BYTES,
}
_KEY = re.compile(r"references/(?P<sha256>[0-9a-f]{64})\.[a-z0-9]{1,8}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:-?[0-9]*)?")


def stored_sha256(source: str) -> str | None:
    """Return the hash that a store's key is named by; None where `source` is no such key."""
    match = _KEY.fullmatch(source)
    return match["sha256"] if match else None


def is_link(source: str) -> bool:
    return source.startswith("https://")


def is_local(source: str) -> bool:
    """Say whether only the machine that wrote `source` can read it."""
    return not is_link(source) and stored_sha256(source) is None


def shown_source(source: str) -> str:
    """Return a source as it may be printed or kept: a link without its query, which may be a signature.

    Of a link that hides a password where none belongs nothing is left but the scheme.
    """
    if not _SCHEME.match(source):
        return source
    shown = source.partition("#")[0].partition("?")[0]
    scheme, _, rest = shown.partition("://")
    authority, slash, path = rest.partition("/")
    host = authority.rpartition("@")[2]
    if not _HOST.fullmatch(host):
        return f"{scheme}://…"
    return f"{scheme}://{host}{slash}{path}"[: limits.SHOWN_SOURCE_CHARACTERS]


def _check_source(source: str) -> str:
    if not 0 < len(source) <= limits.SOURCE_CHARACTERS:
        raise ValueError(f"a source has 1 to {limits.SOURCE_CHARACTERS:,} characters")
    if any(not char.isprintable() for char in source):
        raise ValueError("the source holds an unprintable character")
    if _SCHEME.match(source) and not is_link(source):
        raise ValueError(f"{source.partition('://')[0]}:// is not read; give an https link or a stored key")
    return source


class MediaSource(Asked):
    """One file: where it lies and, once somebody has read it, what it holds."""

    source: Annotated[Text, AfterValidator(_check_source)]
    """`references/<sha256>.<ext>`, an https link, or a local path that is uploaded before it is queued."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of its content; filled by whoever submits, checked by whoever fetches."""

    @model_validator(mode="before")
    @classmethod
    def _key_tells_its_hash(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("source"), str) and data.get("sha256") is None:
            return {**data, "sha256": stored_sha256(data["source"])}
        return data

    @model_validator(mode="after")
    def _hash_is_the_keys(self) -> "MediaSource":
        if stored_sha256(self.source) not in (None, self.sha256):
            raise ValueError(f"sha256 is not the one that {self.source} is named by")
        return self


def _from_text(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


Keyframe = Annotated[MediaSource, BeforeValidator(_from_text)]
"""A plain text stands for its source."""


def _sound_from_text(value: Any) -> Any:
    if not isinstance(value, str | dict | MediaSource):
        raise ValueError("expected auto, off or a file")
    return {"source": value} if isinstance(value, str) and value not in ("auto", "off") else value


def _sound_tag(value: Any) -> str:
    """Say which of both a sound is, so that only what is wrong with that one is told."""
    return "word" if isinstance(value, str) else UNTOLD_TAG


class ReferenceItem(MediaSource):
    """One reference of a `ref2va` job; their order is semantic."""

    kind: Kind
    size: Literal["match", "max"] = "match"
    """Of a picture: shrunk to the film's area, or to a short edge of 2048 pixels; never enlarged."""
    audio: Annotated[
        Annotated[Literal["auto", "off"], Tag("word")] | Annotated[MediaSource, Tag(UNTOLD_TAG)],
        Discriminator(_sound_tag),
        BeforeValidator(_sound_from_text),
    ] = "auto"
    """Of a clip: its own sound where it has any, none, or that of another file."""

    @model_validator(mode="after")
    def _options_fit_the_kind(self) -> "ReferenceItem":
        if self.size != "match" and self.kind != "image":
            raise ValueError(f"size is for pictures; a reference of kind {self.kind} has none to choose")
        if self.audio != "auto" and self.kind != "video":
            raise ValueError(f"audio is for clips; a reference of kind {self.kind} has none to choose")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Medium:
    """One file that a job needs, at its place: `references[0]`, `references[0].audio`, `last_frame`."""

    place: str
    kind: Kind
    source: str
    sha256: str | None


def check_references(references: Sequence[ReferenceItem]) -> None:
    """Raise ValueError with both numbers where there are too many, too few, or sounds alone."""
    if not references:
        raise ValueError("a ref2va job has at least one reference")
    if len(references) > limits.REFERENCES:
        raise ValueError(f"{len(references)} references; at most {limits.REFERENCES} are accepted")
    for kind, most in KIND_MAXIMA.items():
        count = sum(item.kind == kind for item in references)
        if count > most:
            raise ValueError(f"{count} references of kind {kind}; at most {most} are accepted")
    if all(item.kind == "audio" for item in references):
        raise ValueError("sounds alone are no reference; add a picture or a clip")


def media_of(references: Sequence[ReferenceItem]) -> list[Medium]:
    """Return the files of references in order; a clip's other sound follows its clip."""
    found = []
    for number, item in enumerate(references):
        place = f"references[{number}]"
        found.append(Medium(place=place, kind=item.kind, source=item.source, sha256=item.sha256))
        if isinstance(item.audio, MediaSource):
            sound = item.audio
            found.append(
                Medium(place=f"{place}.audio", kind="audio", source=sound.source, sha256=sound.sha256)
            )
    return found


def replaced(
    references: Sequence[ReferenceItem], settle: Callable[[Medium], MediaSource]
) -> tuple[ReferenceItem, ...]:
    """Return the references with each file as `settle` says where it lies now."""
    settled = {medium.place: settle(medium) for medium in media_of(references)}
    found = []
    for number, item in enumerate(references):
        place = f"references[{number}]"
        own = settled[place]
        fields: dict[str, Any] = {"source": own.source, "sha256": own.sha256}
        if f"{place}.audio" in settled:
            fields["audio"] = settled[f"{place}.audio"]
        found.append(item.model_copy(update=fields))
    return tuple(found)
