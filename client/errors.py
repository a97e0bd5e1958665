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

    def __init__(self, served: list[str], *, start: str = "h3-worker run") -> None:
        if served:
            what = f"no checkpoint was named and live nodes serve {', '.join(served)}; name one with"
        else:
            what = f"no live node says which checkpoint it serves; start a node: {start}, or name one with"
        super().__init__(f"{what} --checkpoint or H3_CHECKPOINT")
        self.served = served


class NodeRequiredError(ClientError):
    """Raised under `--require-node` when a run would have to wait for a node that does not live yet."""


class UnknownRunError(ClientError):
    """Raised when neither storage nor the queue knows a run or sweep."""

    def __init__(self, name: str, *, storage_url: str) -> None:
        super().__init__(
            f"no run or sweep {name!r} in {storage_url} or the queue; check the id, --storage and --fleet"
        )
        self.name = name


class AmbiguousIdError(ClientError):
    """Raised when the start of an id fits several runs or sweeps."""

    def __init__(self, start: str, *, found: list[str]) -> None:
        more = " and more" if len(found) > 3 else ""
        super().__init__(f"{start!r} is the start of {', '.join(found[:3])}{more}; give more of the id")
        self.start, self.found = start, found


class UploadError(ClientError):
    """Raised when a reference cannot be read or stored, or is none that a job may name."""

    code = ErrorCode.REFERENCE_UNREADABLE


class FetchTargetError(ClientError):
    """Raised when films cannot be copied to the folder that was named."""


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
