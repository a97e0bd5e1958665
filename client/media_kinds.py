"""What kind of medium a file is: by what it holds where `media` is installed, else by the end of its name."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from client.errors import UploadError
from queue_schemas.references import Kind, Medium, is_link

_ENDINGS: Final[dict[Kind, tuple[str, ...]]] = {
    "image": ("png", "jpg", "webp", "bmp", "tif", "heic", "avif", "gif"),
    "video": ("mp4", "mov", "mkv", "webm", "avi", "m4v"),
    "audio": ("wav", "mp3", "flac", "m4a", "aac", "ogg", "opus"),
}
_SAME: Final = {"jpeg": "jpg", "tiff": "tif", "heif": "heic"}
_KINDS: Final[dict[str, Kind]] = {ending: kind for kind, endings in _ENDINGS.items() for ending in endings}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What a file's header tells."""

    ending: str
    seconds: float | None = None
    """Of a clip or sound, where `media` is installed."""


def ending_of(source: str) -> str:
    """Return the end of a name, as this project spells it; empty where it has none."""
    path = urlsplit(source).path if is_link(source) else source
    ending = PurePosixPath(path).suffix.removeprefix(".").lower()
    return _SAME.get(ending, ending)


def kind_of(source: str, *, called: str) -> Kind:
    """Return the kind of a file, link or key. Raises UploadError, which names it as it is `called`."""
    kind = _KINDS.get(ending_of(source))
    if kind is None:
        known = ", ".join(_KINDS)
        raise UploadError(
            f"{called} does not end in one of {known}; say kind=image, kind=video or kind=audio"
        )
    return kind


def stored_kind(key: str) -> Kind | None:
    """Return the kind that a key's end tells; None for one that other writers chose."""
    return _KINDS.get(ending_of(key))


def inspect_file(path: Path, medium: Medium, *, called: str) -> FileFacts:
    """Look at a file's header. Raises UploadError where it is none of its kind, OSError."""
    return FileFacts(ending=ending_of(medium.source) if _KINDS.get(ending_of(medium.source)) else "bin")
