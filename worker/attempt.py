"""One attempt at one run: generate, and the record and manifest that say what came of it.

The manifest decides: it is created once, by whoever comes first, for success and failure alike. Everything
else of an attempt lies in a folder of its own and can be lost without harm.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from queue_schemas import limits
from queue_schemas.benchmark import BenchmarkRecord, OutputFile, Seconds
from queue_schemas.errors import ErrorCode, InvalidRequestError, explain
from queue_schemas.events import JobError, JobStatus, ProgressEvent, Stage
from queue_schemas.jobs import JOB_ADAPTER, Job, JobFields
from queue_schemas.loras import applied_loras, lora_notes
from queue_schemas.results import EngineReady, GenerateResult, Manifest
from queue_schemas.runs import is_repeat
from storage.base import ArtifactStore
from storage.layout import FILM, LOG, RECORD, REQUEST, attempt_prefix, manifest_key
from worker.attempt_log import AttemptLog
from worker.engine_client import EngineAddress, EngineClient
from worker.engine_log import engine_log_size
from worker.errors import EngineLostError
from worker.gathering import without_queries
from worker.slot import Slot, give_back
from worker.spool import MadeBy, MadeFilm

log = logging.getLogger(__name__)


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True, kw_only=True)
class Attempt:
    """What is known about the attempt so far; filled in as it goes, so a failure is recorded at any point."""

    run_id: str
    generation: int
    number: int
    fields: dict[str, Any]
    """The job as it arrived."""
    queue_wait_seconds: float | None
    started_at: str = field(default_factory=utc_now)
    started: float = field(default_factory=time.monotonic)
    slot: Slot | None = None
    """The engine's next slot, until it is presented; None lets the job wait in the engine's line."""
    job: Job | None = None
    ready: EngineReady | None = None
    """The engine as it was before this job; a failed attempt is recorded with it."""
    result: GenerateResult | None = None
    files: dict[str, OutputFile] = field(default_factory=dict)
    """Role to stored file."""
    fetch_seconds: float | None = None
    """What its references took; None without any."""
    upload_seconds: float | None = None
    total_seconds: float | None = None
    """Up to the film, then up to its end in the store, without the wait for a store that was away."""
    log: AttemptLog | None = None
    engine_log_size: int = 0
    """Where the engine's log ended before this job."""

    @property
    def output_root(self) -> Path:
        """The engine's folder; known once it was prepared for."""
        assert self.ready is not None, "prepare comes first"
        return Path(self.ready.output_root)

    def release_slot(self, address: EngineAddress) -> None:
        """Give the engine's slot back, if it is still held: this run needs no engine, or not yet."""
        slot, self.slot = self.slot, None
        give_back(address, slot)

    def key(self, name: str) -> str:
        return f"{attempt_prefix(self.run_id, self.generation, self.number)}/{name}"


def prepare(
    attempt: Attempt,
    *,
    engine: EngineClient,
    on_event: Callable[[ProgressEvent], None],
    engine_seconds: float,
) -> None:
    """Read the job and see that the engine is there. Nothing is stored yet: the GPU waits."""
    attempt.job = read_job(attempt.fields)
    if attempt.slot is not None:
        attempt.ready = attempt.slot.engine
    else:
        on_event(ProgressEvent(stage=Stage.WAITING))
        attempt.ready = engine.wait_ready(seconds=engine_seconds)
    attempt.engine_log_size = engine_log_size(attempt.output_root, node=attempt.ready.environment.node)


def make_film(
    attempt: Attempt,
    *,
    engine: EngineClient,
    on_event: Callable[[ProgressEvent], None],
    engine_seconds: float,
) -> MadeFilm:
    """Have a prepared attempt's film made; `engine_seconds` bounds the wait for a free seat."""
    assert attempt.job is not None, "prepare comes first"
    body = attempt.job.model_dump(mode="json") | {"output": attempt.key(FILM)}
    if is_repeat(attempt.run_id):
        body["conditioning_cache"] = "off"  # whoever repeats a run measures it
    token, attempt.slot = attempt.slot.token if attempt.slot else None, None
    attempt.result = engine.generate(body, on_event=on_event, busy_seconds=engine_seconds, reservation=token)
    film = attempt.output_root / attempt.result.output
    if not film.is_file():
        raise EngineLostError(f"the engine's film is not at {film}: the engine must run on this machine")
    engine_wait = attempt.result.seconds.engine_wait or 0.0
    attempt.total_seconds = time.monotonic() - attempt.started - engine_wait
    made_by = MadeBy(
        run_id=attempt.run_id, generation=attempt.generation, attempt=attempt.number, result=attempt.result
    )
    return MadeFilm(film, made_by)


def read_job(fields: dict[str, Any]) -> Job:
    """Return the job as it arrived: nothing is drawn or filled in here.

    Raises InvalidRequestError, also for a file of which nobody has said what it holds.
    """
    try:
        job = JOB_ADAPTER.validate_python(fields)
    except ValidationError as error:
        raise InvalidRequestError(explain(error, known_fields=JobFields.model_fields)) from None
    job.canonical_json()
    return job


def status_after(error: JobError | None) -> JobStatus:
    """Return how a run ends whose last attempt ended with `error`."""
    if error is None:
        return JobStatus.SUCCEEDED
    return JobStatus.CANCELLED if error.code is ErrorCode.CANCELLED else JobStatus.FAILED


def write_record(attempt: Attempt, *, store: ArtifactStore, error: JobError | None) -> None:
    """Store the attempt's request and its benchmark record, and its log unless it succeeded."""
    if error is not None and attempt.log is not None:
        run = attempt.run_id, attempt.generation
        attempt.files["log"] = put_log(attempt.log, store, run=run, number=attempt.number)
    if attempt.job is not None:
        _put_json(attempt, store, role="request", name=REQUEST, value=_kept_fields(attempt.job))
    record = make_record(attempt, error=error)
    _put_json(attempt, store, role="benchmark", name=RECORD, value=record.model_dump(mode="json"))


def put_log(said: AttemptLog, store: ArtifactStore, *, run: tuple[str, int], number: int) -> OutputFile:
    """Store what was said during an attempt; `run` is its id and generation."""
    return store.put_bytes(f"{attempt_prefix(*run, number)}/{LOG}", said.text().encode())


def make_record(attempt: Attempt, *, error: JobError | None) -> BenchmarkRecord:
    """Return the record: what the engine measured, and what only the job process could."""
    result = attempt.result
    seconds = (result.seconds if result else Seconds()).model_copy(
        update={
            "queue_wait": attempt.queue_wait_seconds,
            "reference_fetch": attempt.fetch_seconds,
            "upload": attempt.upload_seconds,
            "total": attempt.total_seconds,
        }
    )
    return BenchmarkRecord(
        run_id=attempt.run_id,
        job_id=job_id_of(attempt),
        generation=attempt.generation,
        attempt=attempt.number,
        status=status_after(error),
        error=error,
        request=_kept_fields(attempt.job) if attempt.job else attempt.fields,
        seconds=seconds,
        outputs=[attempt.files["video"]] if "video" in attempt.files else [],
        started_at=attempt.started_at,
        finished_at=utc_now(),
        **(_measured(result) if result is not None else _expected(attempt)),
    )


def commit(attempt: Attempt, *, store: ArtifactStore, error: JobError | None) -> Manifest:
    """Create the run's manifest, or return the one that somebody else created first."""
    return create_manifest(
        store,
        run_id=attempt.run_id,
        generation=attempt.generation,
        number=attempt.number,
        error=error,
        files=attempt.files,
        job_id=job_id_of(attempt),
        proof=attempt.result if error is None else None,
    )


def create_manifest(
    store: ArtifactStore,
    *,
    run_id: str,
    generation: int,
    number: int,
    error: JobError | None,
    files: Mapping[str, OutputFile],
    job_id: str | None = None,
    proof: GenerateResult | None = None,
) -> Manifest:
    """Create the manifest that ends a run, or return the one that somebody else created first.

    `proof` holds the receipts of a film that was made.
    """
    manifest = Manifest(
        run_id=run_id,
        job_id=job_id or run_id.partition("-")[0],  # a run is named after its job
        generation=generation,
        attempt=number,
        status=status_after(error),
        error=error,
        files=dict(files),
        prompt=proof.prompt if proof else None,
        references=proof.references if proof else [],
        finished_at=utc_now(),
    )
    if store.put_if_absent(manifest_key(run_id, generation), manifest.model_dump_json(indent=1).encode()):
        return manifest
    log.warning("run %s: another attempt has committed before attempt %d", run_id, number)
    return read_manifest(store, run_id, generation) or manifest


def read_manifest(store: ArtifactStore, run_id: str, generation: int) -> Manifest | None:
    """Return how the run ended; None while it has not."""
    data = store.read_bytes(manifest_key(run_id, generation), limit_bytes=limits.RESULT_BYTES)
    return None if data is None else Manifest.model_validate_json(data)


def job_id_of(attempt: Attempt) -> str:
    """Return the job's identity; for a job that cannot be read, what its run was named after."""
    return attempt.job.job_id if attempt.job else attempt.run_id.partition("-")[0]


def _kept_fields(job: Job) -> dict[str, Any]:
    return without_queries(job).model_dump(mode="json")


def _measured(result: GenerateResult) -> dict[str, Any]:
    return {
        "notes": result.notes,
        "environment": result.environment,
        "checkpoint": result.checkpoint,
        "loras": result.loras,
        "backends": result.backends,
        "cold": result.cold,
        "jobs_served": result.jobs_served,
        "conditioning_cache": result.conditioning_cache,
        "tokens": result.tokens,
        "prompt": result.prompt,
        "references": result.references,
        "evaluations": result.evaluations,
        "peak_host_bytes": result.peak_host_bytes,
        "peak_device_bytes": result.peak_device_bytes,
        "media": result.media,
    }


def _expected(attempt: Attempt) -> dict[str, Any]:
    """Return what is known about an attempt that has no result: where it ran, and on what."""
    job, ready = attempt.job, attempt.ready
    loras, task = ([], None) if ready is None else (ready.loras, ready.checkpoint.transformer_task)
    asked = (
        {}
        if job is None
        else {
            "notes": [*job.notes, *lora_notes(job, loras, transformer_task=task)],
            "loras": applied_loras(job, loras),
        }
    )
    if ready is None:
        return asked
    return {
        **asked,
        "environment": ready.environment,
        "checkpoint": ready.checkpoint,
        "backends": ready.backends,
        "cold": ready.jobs_served == 0,
        "jobs_served": ready.jobs_served,
    }


def _put_json(attempt: Attempt, store: ArtifactStore, *, role: str, name: str, value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    attempt.files[role] = store.put_bytes(attempt.key(name), text.encode())
