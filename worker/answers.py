"""Errors as HTTP answers: each JSON, with a code, a sentence and a status that fits. Knows no engine."""

import logging
from collections.abc import Mapping
from typing import Final

from starlette.responses import JSONResponse, Response

from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobError
from queue_schemas.reservations import RESERVATION_GONE_STATUS
from worker.errors import ReservationLostError, job_error

log = logging.getLogger(__name__)

_STATUS: Final = {
    ErrorCode.INVALID_REQUEST: 422,
    ErrorCode.REFERENCE_UNREADABLE: 422,
    ErrorCode.CHECKPOINT_MISMATCH: 409,
    ErrorCode.ATTENTION_UNAVAILABLE: 409,
    ErrorCode.CANCELLED: 409,
    ErrorCode.OUTPUT_REJECTED: 500,
    ErrorCode.OUT_OF_MEMORY: 503,
    ErrorCode.BUSY: 503,
    ErrorCode.STORAGE_UNAVAILABLE: 503,
}


def told(error: BaseException) -> JobError:
    """Return what a caller is told; what nobody expected goes into the log."""
    found = job_error(error)
    if found.code is ErrorCode.INTERNAL:
        log.error("unexpected %s", type(error).__name__, exc_info=error)
    return found


def failed(error: Exception) -> Response:
    """Answer with what went wrong; a lost reservation has a status of its own, which tells it from busy."""
    gone = isinstance(error, ReservationLostError)
    return failure(told(error), status=RESERVATION_GONE_STATUS if gone else None)


def failure(error: JobError, *, status: int | None = None) -> Response:
    """Return an error as JSON under the status that fits its code, or under the one that is given."""
    status = status or _STATUS.get(error.code, 500)
    return JSONResponse({"error": error.model_dump(mode="json")}, status_code=status)


def refusal(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    error = JobError(code=ErrorCode.INVALID_REQUEST, message=message, retryable=False)
    return JSONResponse({"error": error.model_dump(mode="json")}, status_code=status, headers=headers)
