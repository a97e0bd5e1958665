"""Errors of the client."""

from typing import ClassVar

from queue_schemas.errors import ErrorCode


class ClientError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[ErrorCode] = ErrorCode.INVALID_REQUEST


class ClientSettingsError(ClientError):
    """Raised when an environment value or a flag cannot be used."""


class SweepInputError(ClientError):
    """Raised when a prompts file or a list of seeds cannot be expanded into runs."""


class CheckpointChoiceError(ClientError):
    """Raised when no checkpoint was named and the live nodes do not settle it."""

    def __init__(self, served: list[str]) -> None:
        remedy = "name one with --checkpoint or H3_CHECKPOINT"
        what = f"live nodes serve {', '.join(served)}" if served else "no live node serves any"
        super().__init__(f"no checkpoint was named and {what}; {remedy}")
        self.served = served


class UnknownRunError(ClientError):
    """Raised when neither storage nor the queue knows a run or sweep."""

    def __init__(self, name: str, *, storage_url: str) -> None:
        super().__init__(
            f"no run or sweep {name!r} in {storage_url} or the queue; check the id, --storage and --fleet"
        )
        self.name = name


class DamagedArtifactError(ClientError):
    """Raised when a manifest, record or sweep in storage cannot be read as one."""

    code = ErrorCode.STORAGE_UNAVAILABLE

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key} in storage is damaged: {reason}; repair or remove it")
        self.key = key


class CollectTargetError(ClientError):
    """Raised when records cannot be written to the file that was named."""


class DemoError(ClientError):
    """Raised when the demo's own node did not start, or ended before its work was done."""

    code = ErrorCode.ENGINE_LOST


class DemoFolderError(ClientError):
    """Raised when the demo's folder is in use, or holds what the demo did not put there."""
