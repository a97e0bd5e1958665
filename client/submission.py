"""What is asked for before it is queued: jobs checked, runs told apart, notes for a person.

Knows no connection and writes nothing: everything a caller did wrong is found here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict

from pydantic import ValidationError

from broker.submit import QueuedRun
from client.given_references import with_media
from client.handle import AnyJob, Outcome, RunHandle, SweepHandle
from client.outcomes import succeeded
from client.sweeps import excerpt
from queue_schemas.errors import InvalidRequestError, explain
from queue_schemas.jobs import build_job, draw_seed
from queue_schemas.results import Manifest
from queue_schemas.runs import Priority, RunKey, Submission, needs_of, run_id_of
from queue_schemas.sweeps import Sweep, SweepRun

_UNSETTLED = "not-settled-before-redis-is-asked"  # a checkpoint's name while its job is checked
_REPEATS = 10_000


class HowOptions(TypedDict, total=False):
    """The keyword arguments that every submitting method takes."""

    priority: Priority
    repeat: int
    force: bool
    node: str | None
    labels: Mapping[str, str]
    require_node: bool
    fetch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How runs are asked for; none of it changes a film."""

    priority: Priority = Priority.NORMAL
    repeat: int = 0
    """Another number is another run of the same job."""
    force: bool = False
    """Take the lowest repeat that nobody used yet."""
    node: str | None = None
    """The only node that may serve it."""
    labels: Mapping[str, str] = field(default_factory=dict)
    require_node: bool = False
    """Refuse what no live node can serve now."""
    fetch: bool = True
    """Read references that are https links, now, and store them like files; else refuse them."""

    def key(self) -> RunKey:
        """Return what goes into the runs' ids. Raises InvalidRequestError, also for odd labels."""
        try:
            Submission(priority=self.priority, labels=dict(self.labels))
            return RunKey(repeat=self.repeat, node=self.node)
        except ValidationError as error:
            raise InvalidRequestError(explain(error)) from None


@dataclass(frozen=True, kw_only=True)
class AskedRun:
    """One run as it was asked for; its id is a hash of the whole job, so it is made once."""

    label: str
    job: AnyJob
    key: RunKey

    @cached_property
    def run_id(self) -> str:
        return run_id_of(self.job, self.key)

    @property
    def needs(self) -> list[str]:
        return needs_of(self.job, self.key)


def check_job(
    label: str,
    asked: AnyJob | Mapping[str, Any],
    *,
    checkpoint: str | None,
    defaults: Mapping[str, Any],
) -> AnyJob:
    """Return the job, its checkpoint perhaps still unsettled.

    Raises InvalidRequestError, by label, and UploadError where nothing tells a reference's kind.
    """
    if not isinstance(asked, Mapping):
        return asked
    fields = {"seed": draw_seed(), **defaults, **with_media(asked)}
    try:
        return build_job(fields, checkpoint=checkpoint or _UNSETTLED)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{label}: {error}" if label else str(error)) from None


def settle_checkpoint(jobs: Sequence[AnyJob], choose: Callable[[], str]) -> list[AnyJob]:
    """Give the jobs that name no checkpoint the chosen one; `choose` is called only where there are any."""
    if all(job.checkpoint != _UNSETTLED for job in jobs):
        return list(jobs)
    checkpoint = choose()
    return [
        build_job({**job.model_dump(mode="json"), "checkpoint": checkpoint})
        if job.checkpoint == _UNSETTLED
        else job
        for job in jobs
    ]


def label_of(label: str, job: AnyJob) -> str:
    """Return a run's label; where the caller gave none, the beginning of its prompt and its seed."""
    return label or f"{excerpt(job.prompt)}, seed {job.seed}"


def with_unused_repeats(
    asked: Sequence[AskedRun], is_used: Callable[[Sequence[str]], Sequence[bool]]
) -> list[AskedRun]:
    """Move every run to the lowest repeat of its job that `is_used` denies; equal jobs share one."""
    chosen, open_runs = dict[str, AskedRun](), {run.run_id: run for run in asked}
    for repeat in range(_REPEATS):
        tried = {
            name: replace(run, key=run.key.model_copy(update={"repeat": repeat}))
            for name, run in open_runs.items()
        }
        used = is_used([run.run_id for run in tried.values()])
        chosen |= {name: run for (name, run), taken in zip(tried.items(), used, strict=True) if not taken}
        open_runs = {name: run for name, run in open_runs.items() if name not in chosen}
        if not open_runs:
            return [replace(chosen[run.run_id], label=run.label) for run in asked]
    raise InvalidRequestError(f"all {_REPEATS:,} repeats of a job are used")


def without_doubles(asked: Sequence[AskedRun]) -> list[AskedRun]:
    """Return every run once, at its first place and under its first label."""
    found = dict[str, AskedRun]()
    for run in asked:
        found.setdefault(run.run_id, run)
    return list(found.values())


def planned(
    runs: Sequence[AskedRun], manifests: Sequence[Manifest | None]
) -> tuple[list[SweepRun], dict[str, Outcome]]:
    """Return each run at the generation that is due, and which are done: their newest manifest says so."""
    described, ended = [], dict[str, Outcome]()
    for run, manifest in zip(runs, manifests, strict=True):
        generation = 1 if manifest is None else manifest.generation + 1
        if manifest is not None and succeeded(manifest):
            generation = manifest.generation
            ended[run.run_id] = Outcome.DONE
        described.append(
            SweepRun(
                run_id=run.run_id,
                job=run.job.model_dump(mode="json"),
                label=run.label,
                key=run.key,
                generation=generation,
            )
        )
    return described, ended


def queue_entries(
    sweep: Sweep, runs: Sequence[SweepRun], *, needs: Mapping[str, list[str]]
) -> list[QueuedRun]:
    """Return what the queue is given for these runs of a sweep."""
    submission = Submission(sweep_id=sweep.sweep_id, priority=sweep.priority, labels=sweep.labels)
    return [
        QueuedRun(
            run_id=run.run_id,
            generation=run.generation,
            job=run.job,
            key=run.key,
            submission=submission,
            needs=needs[run.run_id],
        )
        for run in runs
    ]


def submitted_handle(
    sweep: Sweep, *, jobs: Mapping[str, AnyJob], outcomes: Mapping[str, Outcome], notes: tuple[str, ...]
) -> SweepHandle:
    """Return the handle of a sweep that is queued; `jobs` and `outcomes` are by run id."""
    runs = [
        RunHandle(
            run_id=run.run_id,
            generation=run.generation,
            sweep_id=sweep.sweep_id,
            label=run.label,
            outcome=outcomes[run.run_id],
            job=jobs[run.run_id],
            key=run.key,
            notes=notes,
        )
        for run in sweep.runs
    ]
    return SweepHandle(sweep_id=sweep.sweep_id, runs=tuple(runs), notes=notes)
