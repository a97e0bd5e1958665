"""Errors of a node, and the one place where any exception becomes what a client reads. Imports no torch."""

from collections.abc import Mapping
from typing import ClassVar, Final

from queue_schemas.benchmark import OutputFile
from queue_schemas.errors import EXIT_REFUSED, EXIT_RUNTIME, ErrorCode
from queue_schemas.events import JobError

_MESSAGE_CHARACTERS: Final = 2_000  # a message must fit an event, whatever a library put into it


class WorkerError(Exception):
    """Base of every error this package raises on purpose."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL


class SettingsError(WorkerError):
    """Raised when a setting has a value that cannot be meant."""

    code = ErrorCode.INVALID_REQUEST


class ReferenceUnreachableError(WorkerError):
    """Raised when a link of a job could not be read to its end now; the same may succeed later."""

    code = ErrorCode.REFERENCE_UNREADABLE
    retryable: ClassVar[bool] = True


class EngineBusyError(WorkerError):
    """Raised when the engine has a running and a waiting job already, or too many callers wait for it."""

    code = ErrorCode.BUSY

    def __init__(self, message: str = "") -> None:
        super().__init__(
            message or "the engine has one job running and one waiting; try again when one has ended"
        )


class SlotClosedError(WorkerError):
    """Raised when the engine's next slot is held by another puller, or not open yet; ask again soon."""

    code = ErrorCode.BUSY


class ReservationLostError(WorkerError):
    """Raised when a reservation ran out or its engine is another one now: the claimed job is given back."""

    code = ErrorCode.BUSY


class EngineLostError(WorkerError):
    """Raised when the engine cannot be reached, or went away in the middle of a job."""

    code = ErrorCode.ENGINE_LOST


class EngineNotReadyError(EngineLostError):
    """Raised when an engine answers that it cannot take jobs yet, or accepts and says nothing in time."""

    def __init__(self, url: str, *, reason: str) -> None:
        super().__init__(f"the engine at {url} is not ready: {reason}")
        self.url, self.reason = url, reason


class EngineStalledError(WorkerError):
    """Raised when the engine, or the whole job, showed no progress for too long."""

    code = ErrorCode.STALLED


class EngineAnswerError(WorkerError):
    """Raised when the engine answered a job with an error; `error` is its answer, word for word."""

    def __init__(self, error: JobError) -> None:
        super().__init__(error.message)
        self.error = error


class JobFailedError(WorkerError):
    """Raised when a run has ended badly; its manifest holds the same error."""

    def __init__(self, error: JobError) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.error = error


class RunCancelledError(WorkerError):
    """Raised when a run was asked to stop; its manifest says so, or is about to."""

    code = ErrorCode.CANCELLED

    def __init__(self) -> None:
        super().__init__("cancelled")


class LeaseLostError(WorkerError):
    """Raised when the entry is somebody else's by now: this process may write nothing more about it."""

    code = ErrorCode.QUEUE_UNAVAILABLE


class AttemptFailedError(WorkerError):
    """Raised when an attempt failed for a reason that another attempt may not meet.

    `counts` is False when this job was not at fault; `files` are what the attempt has stored.
    """

    def __init__(self, error: JobError, *, counts: bool, files: Mapping[str, OutputFile]) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.error, self.counts, self.files = error, counts, dict(files)


class EntryRefusedError(WorkerError):
    """Raised when a queue entry is nothing that this project submits: other task, too large, malformed."""

    code = ErrorCode.INVALID_REQUEST


class AgreementInUseError(WorkerError):
    """Raised when what should be forgotten is what live nodes go by."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, nodes: list[str]) -> None:
        super().__init__(f"in use by {', '.join(nodes)}; stop them first")
        self.nodes = nodes


class NodeStartError(WorkerError):
    """Raised when a part of the node does not come up, or is gone for good; `exit_code` is the command's."""

    def __init__(self, message: str, *, exit_code: int = EXIT_RUNTIME) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def job_error(error: BaseException) -> JobError:
    """Turn any exception into a code, a sentence and whether a retry can help."""
    if isinstance(error, EngineAnswerError | JobFailedError | AttemptFailedError):
        return error.error
    code = error_code(error)
    known = isinstance(getattr(error, "code", None), ErrorCode)
    message = str(error) if known else f"{type(error).__name__}: {error}"
    retryable = bool(
        getattr(error, "retryable", code.retryable)
    )  # of the code, unless the error knows better
    return JobError(code=code, message=message[:_MESSAGE_CHARACTERS], retryable=retryable)


def error_code(error: BaseException) -> ErrorCode:
    if isinstance(error, NodeStartError) and error.exit_code == EXIT_REFUSED:
        return ErrorCode.INVALID_REQUEST  # the same options and files will never do
    code = getattr(error, "code", None)
    if isinstance(code, ErrorCode):
        return code
    # torch.OutOfMemoryError by name: whoever asks may have no torch.
    names = {kind.__name__ for kind in type(error).__mro__}
    return ErrorCode.OUT_OF_MEMORY if names & {"OutOfMemoryError", "MemoryError"} else ErrorCode.INTERNAL


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a command that ends with `error`: refused input or a failure."""
    if isinstance(error, NodeStartError):
        return error.exit_code
    return error_code(error).exit_code
