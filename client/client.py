"""`H3Client`: submit jobs and sweeps, look at them, follow them, read what they left.

Everything a caller did wrong is found before Redis is touched; sweep.json is in storage before the first job
is queued. Storage answers for every run that has ended, so Redis may forget. Knows no terminal.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Self, Unpack

import redis

from broker.address import show_address
from broker.cancel import CancelOutcome, cancel_runs
from broker.connection import connect, queue_errors
from broker.errors import QueueUnavailableError
from broker.keys import check_fleet, entry_id
from broker.nodes import live_nodes
from broker.states import RunState, find_entries, read_states
from broker.submit import check_runs, submit_runs
from broker.sweeps import watch_sweep
from client.cancelling import cancel_handle
from client.errors import DamagedArtifactError, NodeRequiredError
from client.fleet import (
    StoreView,
    may_be_served,
    node_command_line,
    only_checkpoint,
    other_store,
    random_weight_notes,
    waiting_notes,
)
from client.following import follow_runs
from client.handle import AnyJob, Outcome, RunHandle, RunResult, RunStatus, SweepHandle, Upload
from client.jobs import JobsOverview, read_jobs
from client.lookup import find_handle, find_sweep
from client.loras import known_loras, settle_loras
from client.media_files import MediaFiles
from client.outcomes import latest_manifests, read_manifest, read_result
from client.resuming import known_job, reopened
from client.settings import ClientSettings
from client.standing import is_silent, settled, status_of
from client.submission import (
    AskedRun,
    How,
    HowOptions,
    check_job,
    label_of,
    planned,
    queue_entries,
    settle_checkpoint,
    submitted_handle,
    with_unused_repeats,
    without_doubles,
)
from client.sweeps import describe_sweep, expand, sweep_bytes
from client.transfers import Watch, ignore
from client.uploads import check_stored, upload_file
from client.writing import store_to_write
from queue_schemas.environment import DEFAULT_FLEET, DEFAULT_REDIS_URL
from queue_schemas.loras import lora_notes
from queue_schemas.nodes import NodeCard
from queue_schemas.runs import needs_of
from queue_schemas.sweeps import Sweep
from storage.base import ArtifactStore
from storage.errors import StorageError
from storage.identity import read_identity
from storage.layout import sweep_key
from storage.links import DEFAULT_RULES, LinkRules
from storage.local import LocalStore
from storage.uri import DEFAULT_STORAGE_URL, open_store

logger = logging.getLogger(__name__)


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
        self.start_hint = node_command_line(redis_url, storage_url, fleet=fleet)
        self.job_defaults = dict(job_defaults or {})
        self.store: ArtifactStore = open_store(storage_url)
        self.link_rules: LinkRules = DEFAULT_RULES
        """By which references that are links are fetched."""
        self.transfer_watch: Watch = ignore
        """Hears twice a second how far uploads and fetches are."""

    @classmethod
    def from_settings(cls, settings: ClientSettings) -> Self:
        return cls(
            redis_url=settings.redis_url,
            storage_url=settings.storage_url,
            fleet=settings.fleet,
            checkpoint=settings.checkpoint,
            job_defaults=settings.job_defaults(),
        )

    def submit(self, job: AnyJob | Mapping[str, Any], **how: Unpack[HowOptions]) -> RunHandle:
        """Queue one generation, given as a job or as its fields; a sweep of one.

        `references`, `first_frame` and `last_frame` name files (texts or paths), keys of the store or https
        links: what is not in the store is uploaded first, once per content.
        A run that succeeded before is answered from its manifest, one that is queued or running is joined;
        `force` or another `repeat` makes it again. `node` pins it, `priority` orders it, `labels` are kept;
        without `fetch` links are refused.
        Raises InvalidRequestError, UploadError, CheckpointChoiceError and, under `require_node`,
        NodeRequiredError, StorageUnavailableError: then nothing was queued.
        QueueUnavailableError: then a part may have been, and `resume` queues the rest.
        """
        return self.submit_named([("", job)], **how).runs[0]

    def submit_many(
        self, jobs: Sequence[AnyJob | Mapping[str, Any]], **how: Unpack[HowOptions]
    ) -> SweepHandle:
        """Queue any jobs as one sweep, in order; one that occurs twice is one run. Raises as `submit`."""
        return self.submit_named([("", job) for job in jobs], **how)

    def sweep(
        self,
        prompts: Sequence[str],
        seeds: Sequence[int],
        *,
        fields: Mapping[str, Any] | None = None,
        **how: Unpack[HowOptions],
    ) -> SweepHandle:
        """Queue every prompt with every seed, all sharing `fields`. Raises what `submit` raises."""
        named = [(f"prompt {number}", prompt) for number, prompt in enumerate(prompts, start=1)]
        return self.submit_named(expand(named, seeds=seeds, fields=fields or {}), **how)

    def submit_named(
        self, asked: Sequence[tuple[str, AnyJob | Mapping[str, Any]]], **how: Unpack[HowOptions]
    ) -> SweepHandle:
        """`submit_many` for (label, job) pairs; errors and tables say the label."""
        chosen = How(**how)
        key = chosen.key()
        jobs = [
            check_job(label, job, checkpoint=self.checkpoint, defaults=self.job_defaults)
            for label, job in asked
        ]
        with MediaFiles(
            self.store, fetch=chosen.fetch, rules=self.link_rules, watch=self.transfer_watch
        ) as files:
            jobs = files.settled(jobs)
            nodes = live_nodes(self._connection, fleet=self.fleet)
            jobs = settle_checkpoint(jobs, lambda: only_checkpoint(nodes, start=self.start_hint))
            jobs = settle_loras(jobs, [job for _, job in asked], known_loras(jobs, nodes))
            runs = [
                AskedRun(label=label_of(label, job), job=job, key=key)
                for (label, _), job in zip(asked, jobs, strict=True)
            ]
            if chosen.force:
                runs = with_unused_repeats(runs, self._are_used)
            return self._queue_new(runs, files=files, how=chosen, nodes=nodes)

    def resume(self, sweep_id: str, *, retry_failed: bool = False, require_node: bool = False) -> SweepHandle:
        """Queue again what a sweep asked for and has no manifest; with `retry_failed` also what ended badly.

        sweep.json in storage is the truth, so any machine may resume. Raises UnknownRunError and what
        `submit` raises.
        """
        sweep = find_sweep(self.store, sweep_id)
        manifests = latest_manifests(self.store, [run.run_id for run in sweep.runs])
        again, ended = reopened(sweep, manifests, retry_failed=retry_failed)
        nodes = live_nodes(self._connection, fleet=self.fleet)
        how = How(priority=sweep.priority, require_node=require_node)
        jobs = {run.run_id: known_job(run, sweep_id=sweep.sweep_id) for run in again.runs}
        due = [jobs[run.run_id] for run in again.runs if run.run_id not in ended]
        check_stored(self.store, [medium for job in due for medium in job.media])
        return self._queue(again, jobs=jobs, ended=ended, how=how, nodes=nodes)

    def find(self, name: str) -> SweepHandle | RunHandle:
        """Return the sweep or run of that id, each run at its newest generation.

        Eight or more characters of an id do, where they fit no other. Raises UnknownRunError,
        AmbiguousIdError.
        """
        return find_handle(
            self.store, name, states=self._states, connect=lambda: self._connection, fleet=self.fleet
        )

    def get(self, run_id: str) -> RunStatus:
        """Return where the newest generation of a run stands. Raises UnknownRunError."""
        return self.statuses(self.find(run_id))[0]

    def statuses(self, handle: RunHandle | SweepHandle) -> list[RunStatus]:
        """Return where every run of a handle stands now, in its order."""
        return self.statuses_of(handle.runs)

    def statuses_of(self, runs: Sequence[RunHandle]) -> list[RunStatus]:
        """Return where these runs stand now, in order; the queue is asked only about those it may still hold.

        Raises QueueUnavailableError.
        """
        done = (settled(self.store, run) for run in runs if run.outcome in (Outcome.DONE, Outcome.ENDED))
        found = {status.run_id: status for status in done if status is not None}
        asked = [run for run in runs if run.run_id not in found]
        states = dict(zip((run.run_id for run in asked), self._states(asked), strict=True))
        for run in asked:
            found[run.run_id] = status_of(self.store, run, state=states[run.run_id])
        lost = [run for run in asked if found[run.run_id].error and found[run.run_id].manifest is None]
        silent = [run for run in asked if is_silent(states[run.run_id])]
        if lost or silent:  # rare, so only then the nodes are asked
            nodes = live_nodes(self._connection, fleet=self.fleet)
            elsewhere = other_store(self._store_view(), nodes)
            for run in {run.run_id: run for run in (*lost, *silent)}.values():
                found[run.run_id] = status_of(
                    self.store,
                    run,
                    state=states[run.run_id],
                    node_gone=run in silent and not may_be_served(run, nodes),
                    elsewhere=elsewhere,
                )
        return [found[run.run_id] for run in runs]

    def follow(
        self,
        handle: RunHandle | SweepHandle,
        *,
        poll_seconds: float | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> Iterator[RunStatus]:
        """Yield every run's status now and after each change, until all have ended.

        Looks four times a second, where storage is behind a network once. A Redis that stops answering is
        waited for; QueueUnavailableError when it stays away.
        """
        usual = 0.25 if isinstance(self.store, LocalStore) else 1.0
        seconds = usual if poll_seconds is None else poll_seconds
        return follow_runs(self.store, handle.runs, ask=self.statuses_of, pause=lambda: pause(seconds))

    def results(self, handle: RunHandle | SweepHandle) -> Iterator[RunResult]:
        """Yield what each run that has ended left behind, in the handle's order; reads storage only.

        What is damaged is left out with a warning.
        """
        for run in handle.runs:
            try:
                result = self.result(run)
            except DamagedArtifactError as error:
                logger.warning("left out: %s", error)
                continue
            if result is not None:
                yield result

    def result(self, run: RunHandle) -> RunResult | None:
        """Return what a run left behind, None before its end. Raises DamagedArtifactError."""
        manifest = read_manifest(self.store, run.run_id, run.generation)
        return None if manifest is None else read_result(self.store, manifest)

    def cancel(self, handle: RunHandle | SweepHandle, *, force: bool = False) -> dict[str, CancelOutcome]:
        """Cancel what has not ended, by run id: what waits at once, what runs at its next step.

        A run that another sweep wants too goes on, unless forced. Raises QueueUnavailableError,
        StorageUnavailableError.
        """
        return cancel_handle(
            self._connection,
            self.store,
            handle=handle,
            force=force,
            fleet=self.fleet,
            to_write=self._store_to_write,
        )

    def cancel_in_queue(self, run_id: str) -> dict[str, CancelOutcome]:
        """Cancel a run by its whole id while storage is away; the next cancel writes a manifest that is due.

        Empty where the queue holds no such run. Raises QueueUnavailableError.
        """
        entries = [e for e in find_entries(self._connection, run_id) if e.rpartition("-")[0] == run_id]
        outcomes = cancel_runs(self._connection, entries, fleet=self.fleet)
        going = [o for o in outcomes if o in (CancelOutcome.REMOVED, CancelOutcome.SIGNALLED)]
        return {run_id: (going or outcomes)[-1]} if outcomes else {}

    def wait_for_queue(self, *, seconds: float) -> None:
        """Wait for a Redis that starts anew. Raises QueueUnavailableError after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                with queue_errors(self._connection):
                    self._connection.ping()
                return
            except QueueUnavailableError as error:
                if error.answers or time.monotonic() > deadline:
                    raise
            time.sleep(0.25)

    def upload(self, path: Path) -> Upload:
        """Store a reference under the hash of its content.

        Raises UploadError, StorageUnavailableError; QueueUnavailableError where the store is not begun yet.
        """
        return upload_file(self._store_to_write(), path)

    def nodes(self) -> list[NodeCard]:
        """Return the card of every live node. Raises QueueUnavailableError."""
        return live_nodes(self._connection, fleet=self.fleet)

    def jobs(self) -> JobsOverview:
        """Return what waits and runs in this fleet. Raises QueueUnavailableError."""
        return read_jobs(self._connection, fleet=self.fleet)

    @cached_property
    def _connection(self) -> redis.Redis:
        return connect(self.redis_url)

    def _queue_new(
        self, asked: Sequence[AskedRun], *, files: MediaFiles, how: How, nodes: list[NodeCard]
    ) -> SweepHandle:
        """Queue runs at the generation that each is due: the one that succeeded, or the next."""
        runs = without_doubles(asked)
        manifests = latest_manifests(self.store, [run.run_id for run in runs])
        described, ended = planned(runs, manifests)
        sweep = describe_sweep(
            described, now=datetime.now(UTC), priority=how.priority, labels=dict(how.labels)
        )
        jobs = {run.run_id: run.job for run in runs}
        return self._queue(sweep, jobs=jobs, ended=ended, files=files, how=how, nodes=nodes)

    def _queue(
        self,
        sweep: Sweep,
        *,
        jobs: Mapping[str, AnyJob],
        ended: Mapping[str, Outcome],
        how: How,
        nodes: list[NodeCard],
        files: MediaFiles | None = None,
    ) -> SweepHandle:
        """Store the files that are needed, write sweep.json, then queue every run that has not `ended`."""
        queued = [run for run in sweep.runs if run.run_id not in ended]
        needs = {run.run_id: needs_of(jobs[run.run_id], run.key) for run in queued}
        waiting = waiting_notes(needs.values(), nodes=nodes, start=self.start_hint)
        if how.require_node and waiting:
            raise NodeRequiredError(f"{waiting[0]}. Nothing was queued (--require-node)")
        entries = queue_entries(sweep, queued, needs=needs)
        check_runs(entries)
        data = sweep_bytes(sweep)
        store = self._store_to_write()
        if files is not None:
            files.upload(store, [jobs[run.run_id] for run in queued])
        store.put_bytes(sweep_key(sweep.sweep_id), data)
        try:
            submitted = submit_runs(self._connection, entries, fleet=self.fleet)
            if not entries:  # it gets its summary all the same
                with queue_errors(self._connection):
                    watch_sweep(self._connection, sweep.sweep_id, fleet=self.fleet)
        except QueueUnavailableError:
            again = f"h3 sweep --resume {sweep.sweep_id}"
            logger.warning("the sweep is in storage; queue what of it is missing with: %s", again)
            raise
        outcomes = {s.run_id: Outcome.JOINED if s.joined else Outcome.QUEUED for s in submitted}
        loras = known_loras(jobs.values(), nodes)
        notes = dict.fromkeys(note for job in jobs.values() for note in (*job.notes, *lora_notes(job, loras)))
        notes |= dict.fromkeys([*waiting, *random_weight_notes(needs.values(), nodes=nodes)])
        elsewhere = other_store(self._store_view(), nodes) if queued else None
        if elsewhere is not None:
            notes[elsewhere] = None
        return submitted_handle(sweep, jobs=jobs, outcomes={**outcomes, **ended}, notes=tuple(notes))

    def _are_used(self, run_ids: Sequence[str]) -> list[bool]:
        """Say of each run whether it ended, runs or waits: its first generation would be known."""
        manifests = latest_manifests(self.store, run_ids)
        states = read_states(self._connection, [entry_id(name, 1) for name in run_ids], fleet=self.fleet)
        return [
            manifest is not None or state.status is not None
            for manifest, state in zip(manifests, states, strict=True)
        ]

    def _states(self, runs: Sequence[RunHandle]) -> list[RunState]:
        if not runs:
            return []
        entries = [entry_id(run.run_id, run.generation) for run in runs]
        return read_states(self._connection, entries, fleet=self.fleet)

    def _store_to_write(self) -> ArtifactStore:
        return store_to_write(self.store, self._connection, fleet=self.fleet)

    def _store_view(self) -> StoreView:
        try:
            return StoreView(url=self.store.url, identity=read_identity(self.store))
        except StorageError:
            return StoreView(url=self.store.url, identity=None)
