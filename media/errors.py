"""Errors of media."""

from pathlib import Path
from typing import ClassVar

from queue_schemas.errors import ErrorCode


class MediaError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL


class FilmInputError(MediaError):
    """Raised when frames, sound or tags cannot become a film as they are: wrong shape, length or values."""

    code = ErrorCode.OUTPUT_REJECTED


class FilmEncodeError(MediaError):
    """Raised when the encoder took no more; nothing is left behind."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"could not encode {path}: {reason}")
        self.path, self.reason = path, reason


class FilmWriteError(MediaError):
    """Raised when a film could not be stored, as on a full disk; nothing is left behind."""

    code = ErrorCode.STORAGE_UNAVAILABLE

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"could not write {path}: {reason}; make room there, or see that it can be written")
        self.path, self.reason = path, reason


class FilmVerifyError(MediaError):
    """Raised when a film, read back before it gets its name, does not hold what was put in."""

    def __init__(self, path: Path, *, differences: list[str]) -> None:
        super().__init__(f"{path} was not kept, since it reads back wrong: {'; '.join(differences)}")
        self.path, self.differences = path, differences


class FilmUnreadableError(MediaError):
    """Raised when a file is no film: missing, damaged, or without pictures or sound."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read as a film: {reason}")
        self.path, self.reason = path, reason


class ReferenceUnreadableError(MediaError):
    """Raised when a picture, clip or sound cannot be used as it is.

    Whoever knows how the file is called and where in the job it stands adds it with `named`.
    """

    code = ErrorCode.REFERENCE_UNREADABLE

    def __init__(self, reason: str, *, file: str = "", place: str = "") -> None:
        called = f"{place} ({file})" if place and file else place or file
        super().__init__(f"{called}: {reason}" if called else reason)
        self.reason, self.file, self.place = reason, file, place

    def named(self, *, file: str, place: str = "") -> "ReferenceUnreadableError":
        """Return the same fault with the file's name and its place in the job."""
        return ReferenceUnreadableError(self.reason, file=file, place=place)
