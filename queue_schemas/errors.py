"""Error codes of the wire, exit codes of every command, and how a bad request is told to a person."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from pydantic import ValidationError

EXIT_OK: Final = 0
EXIT_NO: Final = 1
"""The answer is no: a comparison failed, a followed sweep has failures."""
EXIT_REFUSED: Final = 2
"""The input was refused; nothing was queued, nothing written."""
EXIT_RUNTIME: Final = 3
EXIT_INTERRUPTED: Final = 130


class ErrorCode(StrEnum):
    """What went wrong, for programs; `retryable` says whether the same job may succeed later."""

    INVALID_REQUEST = "invalid_request"
    NOT_IMPLEMENTED = "not_implemented"
    CHECKPOINT_MISSING = "checkpoint_missing"
    CHECKPOINT_INVALID = "checkpoint_invalid"
    CHECKPOINT_MISMATCH = "checkpoint_mismatch"
    ATTENTION_UNAVAILABLE = "attention_unavailable"
    OUTPUT_REJECTED = "output_rejected"
    OUT_OF_MEMORY = "out_of_memory"
    CANCELLED = "cancelled"
    BUSY = "busy"
    ENGINE_LOST = "engine_lost"
    STALLED = "stalled"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    QUEUE_UNAVAILABLE = "queue_unavailable"
    INTERNAL = "internal"

    @property
    def retryable(self) -> bool:
        return self in _RETRYABLE

    @property
    def exit_code(self) -> int:
        """Of a command that ends with it: the input was refused, or something failed."""
        return EXIT_REFUSED if self in _REFUSALS else EXIT_RUNTIME


_RETRYABLE = frozenset(
    {
        ErrorCode.OUT_OF_MEMORY,
        ErrorCode.BUSY,
        ErrorCode.ENGINE_LOST,
        ErrorCode.STALLED,
        ErrorCode.STORAGE_UNAVAILABLE,
        ErrorCode.QUEUE_UNAVAILABLE,
        ErrorCode.INTERNAL,
    }
)
_REFUSALS = frozenset(
    {
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NOT_IMPLEMENTED,
        ErrorCode.CHECKPOINT_MISSING,
        ErrorCode.CHECKPOINT_INVALID,
        ErrorCode.CHECKPOINT_MISMATCH,
        ErrorCode.ATTENTION_UNAVAILABLE,
        ErrorCode.OUTPUT_REJECTED,
    }
)
"""The same files and the same job will never do."""


class SchemaError(ValueError):
    """Base of every error this package raises on purpose."""

    code = ErrorCode.INVALID_REQUEST


class InvalidRequestError(SchemaError):
    """Raised when a job or request breaks the schema; the message is one sentence for a person."""


class NotImplementedWorkflowError(SchemaError):
    """Raised when a declared workflow has no implementation in this version."""

    code = ErrorCode.NOT_IMPLEMENTED

    def __init__(self, workflow: str) -> None:
        super().__init__(f"workflow {workflow!r} is declared but not implemented in this version; use 't2va'")
        self.workflow = workflow


def explain(error: ValidationError, *, known_fields: Iterable[str] = ()) -> str:
    """Turn pydantic's report into one sentence: each fault with its field, unknown ones with a near name."""
    return "; ".join(_explain_one(dict(item), list(known_fields)) for item in error.errors(include_url=False))


def _explain_one(item: Mapping[str, Any], known_fields: list[str]) -> str:
    # The union tag ("t2va") is pydantic's business, not a field that the caller wrote.
    path = ".".join(str(part) for part in item["loc"] if part not in ("t2va", "fl2va", "ref2va"))
    if item["type"] == "extra_forbidden":
        return f"unknown field {path!r}{nearest_hint(path, known_fields)}"
    if item["type"] == "missing":
        return f"field {path!r} is missing"
    message = str(item["msg"]).removeprefix("Value error, ")
    return f"{path}: {message}" if path else message


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` when a known name is close to `name`, else an empty string."""
    import difflib  # noqa: PLC0415 - only a faulty request pays for it

    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
