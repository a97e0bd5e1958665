"""The summary of a sweep, written to storage when its last run has ended."""

from queue_schemas.base import Lax, Told, Version1
from queue_schemas.errors import ErrorCode
from queue_schemas.events import EndStatus


class RunSummary(Told):
    """How one run of the sweep ended."""

    run_id: str
    generation: int
    status: EndStatus
    error: Lax[ErrorCode] | None = None


class SweepSummary(Told):
    """How a sweep ended; runs in the sweep's own order."""

    schema_version: Version1 = 1
    sweep_id: str
    succeeded: int
    failed: int
    cancelled: int
    finished_at: str
    runs: list[RunSummary]
