"""Error codes of the wire, exit codes of every command, and how a bad request is told to a person."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from pydantic import ValidationError

from queue_schemas import limits
from queue_schemas.text import shortened

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
    CHECKPOINT_MISSING = "checkpoint_missing"
    CHECKPOINT_INVALID = "checkpoint_invalid"
    CHECKPOINT_MISMATCH = "checkpoint_mismatch"
    ATTENTION_UNAVAILABLE = "attention_unavailable"
    REFERENCE_UNREADABLE = "reference_unreadable"
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
        ErrorCode.CHECKPOINT_MISSING,
        ErrorCode.CHECKPOINT_INVALID,
        ErrorCode.CHECKPOINT_MISMATCH,
        ErrorCode.ATTENTION_UNAVAILABLE,
        ErrorCode.REFERENCE_UNREADABLE,
        ErrorCode.OUTPUT_REJECTED,
    }
)
"""The same files and the same job will never do."""


UNTOLD_TAG: Final = "(file)"
"""Names a choice to pydantic alone: no field that a caller wrote, so no part of a place that is told."""


class SchemaError(ValueError):
    """Base of every error this package raises on purpose."""

    code = ErrorCode.INVALID_REQUEST


class InvalidRequestError(SchemaError):
    """Raised when a job or request breaks the schema; the message is one sentence for a person."""


def explain(error: ValidationError, *, known_fields: Iterable[str] = ()) -> str:
    """Turn pydantic's report into one sentence: faults with their fields, unknown ones with a near name.

    The first few are told and the rest counted, whatever the caller sent.
    """
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    known = list(known_fields)
    told = [shortened(_explain_one(fault, known)) for fault in faults[: limits.FAULTS_TOLD]]
    more = len(faults) - len(told)
    return "; ".join([*told, f"and {more:,} more faults"] if more else told)


def _explain_one(fault: Mapping[str, Any], known_fields: list[str]) -> str:
    place = fault["loc"]
    # The tag of the union of jobs is pydantic's business, not a field that the caller wrote.
    if (
        place
        and place[0] in ("t2va", "fl2va", "ref2va")
        and (len(place) > 1 or fault["type"] == "value_error")
    ):
        place = place[1:]
    parts = [shortened(str(part), limits.NAME_CHARACTERS) for part in place if part != UNTOLD_TAG]
    path = ".".join(parts)
    if fault["type"] == "extra_forbidden":
        hint = nearest_hint(path, known_fields) if len(parts) == 1 else ""
        return f"unknown field {path!r}{hint}"
    if fault["type"] == "missing":
        return f"field {path!r} is missing"
    message = _IN_JSON.get(fault["type"]) or str(fault["msg"]).removeprefix("Value error, ")
    return f"{path}: {message}" if path else message


_IN_JSON: Final = {
    "tuple_type": "expected a list",
    "model_type": "expected an object with named fields",
    "model_attributes_type": "expected an object with named fields",
    "dict_type": "expected an object with named fields",
}
"""What pydantic says in Python's words."""


def nearest_hint(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` when a known name is close to `name`, else an empty string."""
    if len(name) > limits.NAME_CHARACTERS:  # resembles nothing, and comparing takes time by its square
        return ""
    import difflib  # noqa: PLC0415 - only a faulty request pays for it

    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
