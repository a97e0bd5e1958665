"""The summary of a sweep, written to storage when its last run has ended."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from queue_schemas.errors import ErrorCode
from queue_schemas.events import JobStatus


class RunSummary(BaseModel):
    """How one run of the sweep ended."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run_id: str
    generation: int
    status: JobStatus
    error: ErrorCode | None = None


class SweepSummary(BaseModel):
    """How a sweep ended; runs in the sweep's own order."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Literal[1] = 1
    sweep_id: str
    succeeded: int
    failed: int
    cancelled: int
    finished_at: str
    runs: list[RunSummary]
