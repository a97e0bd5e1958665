"""A run: a job plus what makes one asking of it different from another, and what serving it takes.

`RunKey` goes into the run's id; `Submission` (who asked, how urgently, for which sweep) never does. Redis and
storage are keyed by `run_id`; tables group by `job_id`.
"""

import hashlib
import json
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from queue_schemas.base import Asked, Lax, Text
from queue_schemas.jobs import JobFields
from queue_schemas.names import Name

AUTO = "auto"


class Priority(StrEnum):
    """Which runs a node takes first; inside a priority, the oldest."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class RunKey(Asked):
    """What distinguishes runs of one job: repetitions, and runs that are tied to a node."""

    repeat: Annotated[int, Field(ge=0, le=9_999)] = 0
    """`--force` takes the lowest number that is not used yet."""
    node: Name | None = None
    """Only for a run that this node alone may serve."""

    @property
    def suffix(self) -> str:
        """What follows the job's id in the run's; empty for the plain run."""
        repeat = f"-r{self.repeat}" if self.repeat else ""
        node = f"-n{hashlib.sha256(self.node.encode()).hexdigest()[:8]}" if self.node else ""
        return repeat + node


class Submission(Asked):
    """How a run was asked for; never part of its identity."""

    sweep_id: str | None = None
    priority: Lax[Priority] = Priority.NORMAL
    labels: dict[Text, Text] = {}
    """Free text for tables, for example the line of a prompts file."""


def run_id_of(job: JobFields, key: RunKey) -> str:
    """Return the id under which queue and storage know this run."""
    return job.job_id + key.suffix


def is_repeat(run_id: str) -> bool:
    """Say whether a run makes a job again that was made before, to be measured or compared."""
    return run_id.partition("-")[2].startswith("r")


def needs_of(job: JobFields, key: RunKey) -> list[str]:
    """Return what a node must have, sorted: `checkpoint:NAME`, `attention:NAME`, `lora:NAME`, `node:NAME`."""
    needs = [f"checkpoint:{job.checkpoint}", *(f"lora:{lora.name}" for lora in job.loras)]
    if job.attention != AUTO:
        needs.append(f"attention:{job.attention}")
    if key.node is not None:
        needs.append(f"node:{key.node}")
    return sorted(needs)


def needs_digest(needs: list[str]) -> str:
    """Return the short name of a set of needs; queues are named by it."""
    text = json.dumps(sorted(needs), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def satisfies(offer: list[str], needs: list[str]) -> bool:
    """Say whether a node that offers `offer` can serve a run with `needs`."""
    return set(needs) <= set(offer)


def entry_payload(
    run_id: str, generation: int, *, job: dict[str, Any], key: RunKey, submission: Submission
) -> Any:
    """Return the keyword arguments of the task, as JSON values."""
    return {
        "run_id": run_id,
        "generation": generation,
        "job": job,
        "run_key": key.model_dump(mode="json"),
        "submission": submission.model_dump(mode="json"),
    }
