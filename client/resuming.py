"""A sweep that is taken up again: what of it is still to be made, told by its sweep.json and the manifests.

Knows no queue: whoever submits the result joins what is queued already.
"""

from collections.abc import Sequence

from pydantic import ValidationError

from client.errors import DamagedArtifactError
from client.handle import AnyJob, Outcome
from client.outcomes import succeeded
from queue_schemas.errors import explain
from queue_schemas.events import JobStatus
from queue_schemas.jobs import JOB_ADAPTER
from queue_schemas.results import Manifest
from queue_schemas.sweeps import Sweep, SweepRun
from storage.layout import sweep_key


def reopened(
    sweep: Sweep, manifests: Sequence[Manifest | None], *, retry_failed: bool
) -> tuple[Sweep, dict[str, Outcome]]:
    """Return the sweep with each run at the generation that is due, and how those stand that are not due.

    `manifests` holds the newest of each run. A run whose asked generation has no manifest is due; one that
    failed or was cancelled is due again, as the next generation, only where `retry_failed`.
    """
    runs, ended = [], dict[str, Outcome]()
    for run, manifest in zip(sweep.runs, manifests, strict=True):
        if manifest is None or manifest.generation < run.generation:
            runs.append(run)
            continue
        generation = manifest.generation
        if manifest.status is JobStatus.SUCCEEDED:
            ended[run.run_id] = Outcome.DONE
        elif retry_failed:
            generation += 1
        else:
            ended[run.run_id] = Outcome.ENDED
        runs.append(run.model_copy(update={"generation": generation}))
    return sweep.model_copy(update={"runs": runs}), ended


def job_of(run: SweepRun) -> AnyJob | None:
    """Return a run's job, None where it is not told or another version wrote it."""
    try:
        return JOB_ADAPTER.validate_python(run.job) if run.job else None
    except ValidationError:
        return None


def known_job(run: SweepRun, *, sweep_id: str) -> AnyJob:
    """Return a run's job. Raises DamagedArtifactError."""
    try:
        return JOB_ADAPTER.validate_python(run.job)
    except ValidationError as error:
        raise DamagedArtifactError(sweep_key(sweep_id), f"{run.run_id}: {explain(error)}") from None


def ended_outcome(run: SweepRun, manifest: Manifest | None) -> Outcome | None:
    """Return how a run stands by its newest manifest; None while the generation asked for has not ended."""
    if manifest is None or manifest.generation < run.generation:
        return None
    return Outcome.DONE if succeeded(manifest) else Outcome.ENDED
