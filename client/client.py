"""`H3Client`: submit jobs and sweeps, look at them, follow them, read what they left.

Everything a caller did wrong is found before Redis is touched; sweep.json is in storage before the first job
is queued. Storage answers for every run that has ended, so Redis may forget. Knows no terminal.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

import redis

from broker.connection import connect, show_address
from broker.errors import QueueEntryError, QueueUnavailableError
from broker.keys import check_fleet, entry_id
from broker.nodes import live_nodes
from broker.states import RunState, read_states
from broker.submit import QueuedRun, SubmitOutcome, submit_runs
from client.errors import CheckpointChoiceError, UnknownRunError
from client.handle import AnyJob, Outcome, RunHandle, RunResult, RunStatus, SweepHandle
from client.outcomes import latest_manifest, read_manifest, read_result, read_sweep
from client.settings import ClientSettings
from client.standing import settled, status_of
from client.sweeps import describe_sweep, expand
from queue_schemas.environment import DEFAULT_FLEET, DEFAULT_REDIS_URL
from queue_schemas.errors import InvalidRequestError, NotImplementedWorkflowError
from queue_schemas.events import JobStatus
from queue_schemas.jobs import IMPLEMENTED_WORKFLOWS, build_job, draw_seed
from queue_schemas.nodes import NodeCard
from queue_schemas.results import Manifest
from queue_schemas.sweeps import Sweep
from storage.base import ArtifactStore
from storage.errors import StorageAddressError
from storage.layout import sweep_key
from storage.uri import DEFAULT_STORAGE_URL, open_store

logger = logging.getLogger(__name__)

QUEUE_PATIENCE_SECONDS = 60.0
"""How long following goes on while Redis does not answer; storage is read all the while."""
_UNSETTLED = "not-settled-before-redis-is-asked"  # a checkpoint's name while its job is checked


class H3Client:
    """A fleet's queue and its storage, as one who submits sees them. Connects at the first need."""

    def __init__(
        self,
        *,
        redis_url: str = DEFAULT_REDIS_URL,
        storage_url: str = DEFAULT_STORAGE_URL,
        fleet: str = DEFAULT_FLEET,
        checkpoint: str | None = None,
        job_defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Check every address and name. Raises QueueAddressError, QueueEntryError, StorageAddressError."""
        show_address(redis_url)
        self.redis_url, self.fleet, self.checkpoint = redis_url, check_fleet(fleet), checkpoint
        self.job_defaults = dict(job_defaults or {})
        self.store: ArtifactStore = open_store(storage_url)

    @classmethod
    def from_settings(cls, settings: ClientSettings) -> Self:
        return cls(
            redis_url=settings.redis_url,
            storage_url=settings.storage_url,
            fleet=settings.fleet,
            checkpoint=settings.checkpoint,
            job_defaults=settings.job_defaults(),
        )

    def submit(self, job: AnyJob | Mapping[str, Any]) -> RunHandle:
        """Queue one generation, given as a job or as its fields; a sweep of one.

        A run that succeeded before is answered from its manifest, one that is queued or running is joined.
        Raises InvalidRequestError, NotImplementedWorkflowError, CheckpointChoiceError, QueueUnavailableError,
        StorageUnavailableError; then nothing was queued.
        """
        return self._submit([("", job)]).runs[0]

    def sweep(
        self, prompts: Sequence[str], seeds: Sequence[int], *, fields: Mapping[str, Any] | None = None
    ) -> SweepHandle:
        """Queue every prompt with every seed, all sharing `fields`. Raises what `submit` raises."""
        named = [(f"prompt {number}", prompt) for number, prompt in enumerate(prompts, start=1)]
        return self.sweep_named(named, seeds, fields=fields)

    def sweep_named(
        self,
        prompts: Sequence[tuple[str, str]],
        seeds: Sequence[int],
        *,
        fields: Mapping[str, Any] | None = None,
    ) -> SweepHandle:
        """`sweep` for (name, prompt) pairs; errors and labels say the name."""
        return self._submit(expand(prompts, seeds=seeds, fields=fields or {}))

    def find(self, name: str) -> SweepHandle | RunHandle:
        """Return the sweep or run of that id, each run at its newest generation. Raises UnknownRunError."""
        try:
            sweep = read_sweep(self.store, name)
            if sweep is not None:
                labels = {run.run_id: run.label for run in sweep.runs}
                return SweepHandle(sweep_id=name, runs=tuple(self._newest(labels, sweep_id=name)))
            (handle,) = self._newest({name: ""}, sweep_id=None)
            if settled(self.store, handle) is None and self._states([handle])[0].status is None:
                raise UnknownRunError(name, storage_url=self.store.url)
        except (StorageAddressError, QueueEntryError):  # nothing can have such a name
            raise UnknownRunError(name, storage_url=self.store.url) from None
        return handle

    def get(self, run_id: str) -> RunStatus:
        """Return where the newest generation of a run stands. Raises UnknownRunError."""
        return self.statuses(self.find(run_id))[0]

    def statuses(self, handle: RunHandle | SweepHandle) -> list[RunStatus]:
        """Return where every run of a handle stands now, in its order."""
        return self._statuses(handle.runs)

    def follow(
        self,
        handle: RunHandle | SweepHandle,
        *,
        poll_seconds: float = 0.25,
        pause: Callable[[float], None] = time.sleep,
    ) -> Iterator[RunStatus]:
        """Yield every run's status now and after each change, until all have ended.

        A Redis that stops answering is waited for; QueueUnavailableError after QUEUE_PATIENCE_SECONDS.
        """
        pending, seen = list(handle.runs), dict[str, RunStatus]()
        answered = time.monotonic()
        while pending:
            try:
                statuses = self._statuses(pending)
                answered = time.monotonic()
            except QueueUnavailableError as error:
                if time.monotonic() - answered > QUEUE_PATIENCE_SECONDS:
                    raise
                logger.warning("%s; waiting for it", error)
                statuses = [s for run in pending if (s := settled(self.store, run)) is not None]
            for status in statuses:
                if seen.get(status.run_id) != status:
                    seen[status.run_id] = status
                    yield status
            ended = {status.run_id for status in statuses if status.status.terminal}
            pending = [run for run in pending if run.run_id not in ended]
            if pending:
                pause(poll_seconds)

    def results(self, handle: RunHandle | SweepHandle) -> Iterator[RunResult]:
        """Yield what each run that has ended left behind, in the handle's order; reads storage only."""
        for run in handle.runs:
            result = self.result(run)
            if result is not None:
                yield result

    def result(self, run: RunHandle) -> RunResult | None:
        """Return what a run left behind, None before its end. Raises DamagedArtifactError."""
        manifest = read_manifest(self.store, run.run_id, run.generation)
        return None if manifest is None else read_result(self.store, manifest)

    @cached_property
    def _connection(self) -> redis.Redis:
        return connect(self.redis_url)

    def _submit(self, asked: Sequence[tuple[str, AnyJob | Mapping[str, Any]]]) -> SweepHandle:
        jobs = [(label, self._check(label, job)) for label, job in asked]
        nodes = live_nodes(self._connection, fleet=self.fleet)
        if any(job.checkpoint == _UNSETTLED for _, job in jobs):
            checkpoint = _only_checkpoint(nodes)
            jobs = [(label, _with_checkpoint(job, checkpoint)) for label, job in jobs]
        sweep = describe_sweep(jobs, now=datetime.now(UTC))
        return self._queue(sweep, {job.job_id: job for _, job in jobs}, nodes=nodes)

    def _queue(self, sweep: Sweep, jobs: Mapping[str, AnyJob], *, nodes: list[NodeCard]) -> SweepHandle:
        manifests = {run.run_id: latest_manifest(self.store, run.run_id) for run in sweep.runs}
        queued = [
            QueuedRun(run_id=run.run_id, generation=_generation(manifests[run.run_id]), job=run.job)
            for run in sweep.runs
            if not _succeeded(manifests[run.run_id])
        ]
        self.store.put_bytes(sweep_key(sweep.sweep_id), sweep.model_dump_json().encode())
        outcomes = {o.run_id: o for o in submit_runs(self._connection, queued, fleet=self.fleet)}
        notes = dict.fromkeys(note for job in jobs.values() for note in job.notes)
        notes |= dict.fromkeys(_missing_nodes([jobs[run.run_id] for run in queued], nodes=nodes))
        runs = [
            RunHandle(
                run_id=run.run_id,
                generation=_generation(manifests[run.run_id]),
                sweep_id=sweep.sweep_id,
                label=run.label,
                outcome=_outcome(outcomes.get(run.run_id)),
                job=jobs[run.run_id],
                notes=tuple(notes),
            )
            for run in sweep.runs
        ]
        return SweepHandle(sweep_id=sweep.sweep_id, runs=tuple(runs), notes=tuple(notes))

    def _check(self, label: str, asked: AnyJob | Mapping[str, Any]) -> AnyJob:
        """Return the job, its checkpoint perhaps still unsettled. Raises InvalidRequestError, by label."""
        if not isinstance(asked, Mapping):
            job = asked
        else:
            fields = {"seed": draw_seed(), **self.job_defaults, **asked}
            try:
                job = build_job(fields, checkpoint=self.checkpoint or _UNSETTLED)
            except InvalidRequestError as error:
                raise InvalidRequestError(f"{label}: {error}" if label else str(error)) from None
        if job.workflow not in IMPLEMENTED_WORKFLOWS:
            raise NotImplementedWorkflowError(job.workflow)
        return job

    def _statuses(self, runs: Sequence[RunHandle]) -> list[RunStatus]:
        """Return the status of each run, in order; the queue is asked only about those it may still hold."""
        done = (settled(self.store, run) for run in runs if run.outcome is Outcome.DONE)
        found = {status.run_id: status for status in done if status is not None}
        asked = [run for run in runs if run.run_id not in found]
        for run, state in zip(asked, self._states(asked), strict=True):
            found[run.run_id] = status_of(self.store, run, state=state)
        return [found[run.run_id] for run in runs]

    def _states(self, runs: Sequence[RunHandle]) -> list[RunState]:
        if not runs:
            return []
        entries = [entry_id(run.run_id, run.generation) for run in runs]
        return read_states(self._connection, entries, fleet=self.fleet)

    def _newest(self, labels: Mapping[str, str], *, sweep_id: str | None) -> list[RunHandle]:
        """Return a handle per run id, at the generation that is queued, else the last that ended, else 1."""
        manifests = {run_id: latest_manifest(self.store, run_id) for run_id in labels}
        handles = {
            run_id: RunHandle(
                run_id=run_id,
                generation=manifest.generation if manifest else 1,
                sweep_id=sweep_id,
                label=labels[run_id],
                outcome=Outcome.DONE if _succeeded(manifest) else None,
            )
            for run_id, manifest in manifests.items()
        }
        again = [
            replace(handles[run_id], generation=manifest.generation + 1)
            for run_id, manifest in manifests.items()
            if manifest is not None and not _succeeded(manifest)
        ]
        for run, state in zip(again, self._states(again), strict=True):
            if state.status is not None:
                handles[run.run_id] = run
        return list(handles.values())


def _succeeded(manifest: Manifest | None) -> bool:
    return manifest is not None and manifest.status is JobStatus.SUCCEEDED


def _generation(manifest: Manifest | None) -> int:
    """Return the generation that a submit means: the one that succeeded, else the next one."""
    if manifest is None:
        return 1
    return manifest.generation if _succeeded(manifest) else manifest.generation + 1


def _outcome(submitted: SubmitOutcome | None) -> Outcome:
    if submitted is None:
        return Outcome.DONE
    return Outcome.JOINED if submitted.joined else Outcome.QUEUED


def _only_checkpoint(nodes: Sequence[NodeCard]) -> str:
    served = sorted({node.checkpoint for node in nodes})
    if len(served) != 1:
        raise CheckpointChoiceError(served)
    return served[0]


def _with_checkpoint(job: AnyJob, checkpoint: str) -> AnyJob:
    if job.checkpoint != _UNSETTLED:
        return job
    return build_job({**job.model_dump(mode="json"), "checkpoint": checkpoint})


def _missing_nodes(jobs: Iterable[AnyJob], *, nodes: Sequence[NodeCard]) -> list[str]:
    served = {node.checkpoint for node in nodes}
    return [
        f"no live node serves checkpoint {name!r}; the job waits until one does: "
        f"h3-worker run --checkpoint {name}"
        for name in sorted({job.checkpoint for job in jobs} - served)
    ]
