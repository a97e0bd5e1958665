"""A sweep: the runs that were asked for together. Written to storage before the first of them is queued."""

from pydantic import Field

from queue_schemas import limits
from queue_schemas.base import JsonFields, Lax, Text, Told, Version1
from queue_schemas.runs import Priority, RunKey


class SweepRun(Told):
    """One run of a sweep: its identity and the job that it is."""

    run_id: str
    job: JsonFields
    label: Text = ""
    key: RunKey = RunKey()
    generation: int = Field(default=1, ge=1)
    """The generation that this sweep asked for; resuming queues it where no manifest of it exists."""


class Sweep(Told):
    """What was asked for, and when; a single submit is a sweep of one."""

    schema_version: Version1 = 1
    sweep_id: str
    created_at: str
    priority: Lax[Priority] = Priority.NORMAL
    labels: dict[Text, Text] = {}
    runs: list[SweepRun] = Field(min_length=1, max_length=limits.SWEEP_RUNS)
