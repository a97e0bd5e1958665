"""Progress of one generation, as NDJSON lines from the engine and as a Redis hash from the puller."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from queue_schemas.errors import ErrorCode


class Stage(StrEnum):
    """What a job is doing now, in order."""

    WAITING = "waiting"
    TEXT_ENCODE = "text_encode"
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


class _Lenient(BaseModel):
    """Results and events ignore fields they do not know, so an old client keeps reading."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class ProgressEvent(_Lenient):
    """A stage began, or one of its steps ended."""

    event: Literal["progress"] = "progress"
    stage: Stage
    step: int = 0
    """Steps of this stage done so far."""
    steps: int = 0
    """Steps this stage has in all; 0 where it has none."""
    seconds: float = 0.0
    """Time the last step took."""


class JobError(_Lenient):
    """Why a job failed: a code for programs, a sentence for a person."""

    code: ErrorCode
    message: str
    retryable: bool


class ErrorEvent(_Lenient):
    """The last line of a stream that failed."""

    event: Literal["error"] = "error"
    error: JobError


class ResultEvent(_Lenient):
    """The last line of a stream that succeeded; `result` is a `GenerateResult`."""

    event: Literal["result"] = "result"
    result: dict[str, Any]


Event = Annotated[ProgressEvent | ErrorEvent | ResultEvent, Field(discriminator="event")]
EVENT_ADAPTER: TypeAdapter[ProgressEvent | ErrorEvent | ResultEvent] = TypeAdapter(Event)
