"""Progress of one generation, as NDJSON lines from the engine and as a Redis hash from the puller."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter

from queue_schemas.base import JsonFields, Lax, Told
from queue_schemas.errors import ErrorCode


class Stage(StrEnum):
    """What a job is doing now, in order."""

    WAITING = "waiting"
    TEXT_ENCODE = "text_encode"
    REFERENCE_ENCODE = "reference_encode"
    DENOISE = "denoise"
    VIDEO_DECODE = "video_decode"
    AUDIO_DECODE = "audio_decode"
    MUX = "mux"
    UPLOAD = "upload"


class JobStatus(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)


def _check_end(status: JobStatus) -> JobStatus:
    if not status.terminal:
        raise ValueError(f"{status.value!r} is no end of a run")
    return status


EndStatus = Annotated[Lax[JobStatus], AfterValidator(_check_end)]
"""How something ended."""


class ProgressEvent(Told):
    """A stage began, or one of its steps ended."""

    event: Literal["progress"] = "progress"
    stage: Lax[Stage]
    step: int = 0
    """Steps of this stage done so far."""
    steps: int = 0
    """Steps this stage has in all; 0 where it has none."""
    seconds: float = 0.0
    """Time the last step took."""


class JobError(Told):
    """Why a job failed: a code for programs, a sentence for a person."""

    code: Lax[ErrorCode]
    message: str
    retryable: bool


class ErrorEvent(Told):
    """The last line of a stream that failed."""

    event: Literal["error"] = "error"
    error: JobError


class ResultEvent(Told):
    """The last line of a stream that succeeded; `result` is a `GenerateResult`."""

    event: Literal["result"] = "result"
    result: JsonFields


Event = Annotated[ProgressEvent | ErrorEvent | ResultEvent, Field(discriminator="event")]
EVENT_ADAPTER: TypeAdapter[ProgressEvent | ErrorEvent | ResultEvent] = TypeAdapter(Event)
