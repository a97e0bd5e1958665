"""Errors of storage."""

from typing import ClassVar

from queue_schemas.errors import ErrorCode


class StorageError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[ErrorCode] = ErrorCode.STORAGE_UNAVAILABLE


class StorageUnavailableError(StorageError):
    """Raised when the store cannot be read or written now; the same call may succeed later.

    `is_lasting`: not by itself, since the place is at fault; whoever has just named it named the wrong one.
    """

    def __init__(self, message: str, *, is_lasting: bool = False) -> None:
        super().__init__(message)
        self.is_lasting = is_lasting


class StorageAddressError(StorageError):
    """Raised when a storage address or key is not acceptable."""

    code = ErrorCode.INVALID_REQUEST


class ArtifactMissingError(StorageError):
    """Raised when a key that must exist does not."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no artifact {key!r} in this store")
        self.key = key


class ArtifactTooLargeError(StorageError):
    """Raised when an artifact holds more bytes than its reader accepts."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, key: str, *, limit_bytes: int) -> None:
        super().__init__(f"artifact {key!r} is larger than the {limit_bytes:,} bytes that are accepted")
        self.key, self.limit_bytes = key, limit_bytes


class LinkError(StorageError):
    """Base of what goes wrong with an https link; the message shows it without its query."""

    code = ErrorCode.REFERENCE_UNREADABLE
    retryable: ClassVar[bool] = False

    def __init__(self, shown: str, fault: str) -> None:
        super().__init__(f"{shown} {fault}")
        self.shown, self.fault = shown, fault


class LinkRefusedError(LinkError):
    """Raised when a link is not followed, or what lies behind it is not accepted: it will never do."""


class LinkUnreachableError(LinkError):
    """Raised when a link could not be read to its end now; the same call may succeed later."""

    retryable = True


class StoreIdentityError(StorageError):
    """Raised when `store.json` is not what this project writes."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, url: str, *, fault: str) -> None:
        super().__init__(f"store.json in {url} {fault}: name another folder or prefix, or remove the file")
        self.url = url
