"""A sweep: the runs that were asked for together. Written to storage before the first of them is queued."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from queue_schemas import limits
from queue_schemas.runs import Priority, RunKey


class SweepRun(BaseModel):
    """One run of a sweep: its identity and the job that it is."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    run_id: str
    job: dict[str, Any]
    label: str = ""
    key: RunKey = RunKey()
    generation: int = Field(default=1, ge=1)
    """The generation that this sweep asked for; resuming queues it where no manifest of it exists."""


class Sweep(BaseModel):
    """What was asked for, and when; a single submit is a sweep of one."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    schema_version: Literal[1] = 1
    sweep_id: str
    created_at: str
    priority: Priority = Priority.NORMAL
    labels: dict[str, str] = {}
    runs: list[SweepRun] = Field(min_length=1, max_length=limits.SWEEP_RUNS)
