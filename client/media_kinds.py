"""What a file is and whether a job may name it: by its header where `media` is installed, else by its name.

Without `media` the end of a name tells the kind, and only bytes are held to the limits; a node then finds the
rest. Nothing is decoded here.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from client.errors import UploadError
from queue_schemas.references import Kind, Medium, is_link, is_local

_ENDINGS: Final[dict[Kind, tuple[str, ...]]] = {
    "image": ("png", "jpg", "webp", "heic", "avif", "tif", "bmp", "gif"),
    "video": ("mp4", "mov", "mkv", "webm", "avi", "m4v", "ts"),
    "audio": ("wav", "flac", "mp3", "m4a", "aac", "ogg", "opus", "aiff"),
}
_SAME: Final = {"jpeg": "jpg", "tiff": "tif", "heif": "heic", "aif": "aiff"}
_KINDS: Final[dict[str, Kind]] = {ending: kind for kind, endings in _ENDINGS.items() for ending in endings}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What a file's header tells."""

    ending: str
    """Of its key: the same for every file of this content and use."""
    seconds: float | None = None
    """Of a clip or sound; None where nothing here can tell."""


@cache
def has_media() -> bool:
    """Say whether pictures, clips and sounds can be looked at here: the extra `media` is installed."""
    return all(importlib.util.find_spec(name) for name in ("av", "PIL", "pillow_heif", "numpy"))


def path_of(source: str) -> Path:
    """Return where a file of this machine lies; a `~name` that nobody has is a folder."""
    try:
        return Path(source).expanduser()
    except RuntimeError:
        return Path(source)


def kind_of(source: str, *, called: str) -> Kind:
    """Return the kind of a file, link or key. Raises UploadError, which names it as it is `called`."""
    if is_local(source) and has_media() and _is_file(path_of(source)):
        return _kind_of_file(path_of(source), called=called)
    kind = _kind_by_name(source)
    if kind is None:
        known = ", ".join(_KINDS)
        raise UploadError(
            f"{called} does not end in one of {known}; say kind=image, kind=video or kind=audio"
        )
    return kind


def check_stored_kind(key: str, kind: Kind, *, called: str) -> None:
    """Refuse a stored picture as clip or sound, and the reverse, by the key's end. Raises UploadError."""
    found = _kind_by_name(key)
    if found is not None and (found == "image") != (kind == "image"):
        raise UploadError(f"{called} is of kind {found}, not {kind}; say kind={found}")


def inspect_file(path: Path, medium: Medium, *, name: str) -> FileFacts:
    """Look at a file's header and hold it to the limits of one file. Raises UploadError."""
    if not has_media():
        return FileFacts(ending=_ending_of(medium.source) if _kind_by_name(medium.source) else "bin")
    from media.errors import ReferenceUnreadableError  # noqa: PLC0415 - an extra, and slow to import
    from media.facts import probe_reference  # noqa: PLC0415

    try:
        facts = probe_reference(path, kind=medium.kind, name=name, place=medium.place)
    except ReferenceUnreadableError as error:
        raise UploadError(str(error)) from None
    endings = facts.form.endings
    own = next((ending for ending in endings if _KINDS.get(ending) == medium.kind), endings[0])
    return FileFacts(ending=own, seconds=facts.seconds)


def check_lengths(lengths: Sequence[tuple[Medium, str, float | None]]) -> None:
    """Hold a job's clips, and its sounds, together to their limit; (medium, name, seconds) each.

    A sound that replaces a clip's counts with its clip. Raises UploadError.
    """
    if not has_media():
        return
    from media.admission import check_all_lengths  # noqa: PLC0415 - as above
    from media.errors import ReferenceUnreadableError  # noqa: PLC0415
    from media.facts import PADDING_SECONDS  # noqa: PLC0415

    kinds: dict[Kind, float] = {"video": 0.0, "audio": PADDING_SECONDS}
    for kind, slack in kinds.items():
        known = [
            (medium.place, name, seconds)
            for medium, name, seconds in lengths
            if medium.kind == kind and seconds is not None and not medium.place.endswith(".audio")
        ]
        try:
            check_all_lengths(kind, known, slack=slack)
        except ReferenceUnreadableError as error:
            raise UploadError(str(error)) from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, or a folder that is closed: whoever reads the file says so
        return False


def _kind_of_file(path: Path, *, called: str) -> Kind:
    from media.errors import ReferenceUnreadableError  # noqa: PLC0415 - as above
    from media.kinds import kind_of_file  # noqa: PLC0415

    try:
        return kind_of_file(path, wanted=_kind_by_name(str(path)) or "image")
    except ReferenceUnreadableError as error:
        raise UploadError(f"{called}: {error}") from None
    except OSError as error:
        raise UploadError(f"{called} cannot be read: {error.strerror}") from None


def _kind_by_name(source: str) -> Kind | None:
    return _KINDS.get(_ending_of(source))


def _ending_of(source: str) -> str:
    """Return the end of a name, as this project spells it; empty where it has none."""
    path = urlsplit(source).path if is_link(source) else source
    ending = PurePosixPath(path).suffix.removeprefix(".").lower()
    return _SAME.get(ending, ending)
