"""`Engine`: the hot pipeline of one node, one GPU thread before it, one encoder thread behind it.

It makes one film at a time; while a film is encoded on the CPU, the next job already denoises. A seat is
taken before anything costs time and given back only when the GPU thread has returned, whatever became of the
caller: a kernel cannot be interrupted, so an engine that says "free" is. Knows no HTTP, queue or torch.
"""

import hashlib
import logging
import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from media.encode import encode_mp4
from model.base import Generation, Pipeline, PipelineCard
from model.errors import GenerationCancelledError
from queue_schemas.benchmark import MediaSummary, OutputFile
from queue_schemas.checks import CheckReport
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.jobs import Job
from queue_schemas.loras import LoraCard, applied_loras, lora_notes
from queue_schemas.requests import GenerateRequest
from queue_schemas.reservations import Confirmation, Reservation
from queue_schemas.results import EngineReady, GenerateResult
from storage.links import DEFAULT_RULES, LinkRules
from worker.decoding import check_media, decode_media
from worker.errors import EngineBusyError, SlotClosedError
from worker.film_path import film_folder, film_path
from worker.gathering import Gathered, Sources
from worker.machine import describe_machine, node_name
from worker.next_slot import NextSlot
from worker.pace import Paces, RunningJob
from worker.reference_folder import ReferenceFolder

if TYPE_CHECKING:
    from media.references import PreparedMedia

log = logging.getLogger(__name__)

OnEvent = Callable[[ProgressEvent], None]
Cancelled = Callable[[], bool]
GPU_SEATS: Final = 2
"""One job running and one waiting."""
SEATS: Final = 4
"""With those whose frames wait for the encoder: it bounds the frames held in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What the GPU thread hands to the encoder."""

    generation: Generation
    jobs_served: int
    started: float
    """When its turn on the GPU began, by the monotonic clock."""


class Engine:
    """Owns the pipeline, its threads, an output root and the counters."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        output_root: Path,
        node: str | None = None,
        input_root: Path | None = None,
        links: LinkRules = DEFAULT_RULES,
    ) -> None:
        """`input_root` is where requests may name files by path, `links` by which rules links are read."""
        self._pipeline = pipeline
        self._root = output_root.resolve()
        self.sources = Sources(folder=ReferenceFolder(self._root), links=links, input_root=input_root)
        self._environment = describe_machine(pipeline.card(), node=node or node_name(None))
        self._gpu = ThreadPoolExecutor(1, thread_name_prefix="gpu")
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._lock = threading.Lock()
        self._on_gpu = self._in_flight = self._served = 0
        self._slot, self._paces = NextSlot(), Paces()
        self._running: RunningJob | None = None

    @property
    def checkpoint(self) -> str:
        """Name of the resident set."""
        return self._pipeline.card().checkpoint.name

    @property
    def output_root(self) -> Path:
        return self._root

    @property
    def loras(self) -> list[LoraCard]:
        """Those that a job may name."""
        return self._pipeline.card().loras

    def ready(self) -> EngineReady:
        """Describe the engine; cheap, from any thread."""
        card = self._pipeline.card()
        with self._lock:
            busy, served = self._on_gpu > 0, self._served
        return EngineReady(
            ready=True,
            busy=busy,
            checkpoint=card.checkpoint,
            backends=card.backends,
            environment=self._environment,
            attention_backends=card.attention_backends,
            loras=card.loras,
            jobs_served=served,
            output_root=str(self._root),
        )

    def check(self, request: GenerateRequest) -> None:
        """Raise what `generate` would raise for this request before it costs anything.

        Not yet for a film that is named after its job while a file of that job has no hash.
        """
        self._pipeline.check(request.job)
        if request.delivery.output is not None or all(medium.sha256 for medium in request.job.media):
            film_path(self._root, request.output)

    def describe(self, gathered: Gathered) -> CheckReport:
        """Answer a dry run: what the job would cost and what becomes of its files. Decodes them.

        Raises ReferenceUnreadableError.
        """
        count = partial(self._pipeline.count_tokens, conventions=gathered.job.conventions)
        report = check_media(gathered, count_tokens=count)
        notes = [*report.notes, *_lora_notes(gathered.job, self._pipeline.card())]
        return report.model_copy(update={"notes": notes})

    def generate(
        self,
        request: GenerateRequest,
        gathered: Gathered | None = None,
        *,
        on_event: OnEvent,
        cancelled: Cancelled,
    ) -> GenerateResult:
        """Make the film and return the facts about it; blocks the calling thread until its file is there.

        `gathered` holds the files of a job that has any. Raises EngineBusyError, GenerationCancelledError,
        ReferenceUnreadableError, and what the pipeline and the encoder raise.
        """
        self.check(request)
        self.take_seat()
        return self.generate_seated(request, gathered, on_event=on_event, cancelled=cancelled)

    def take_seat(self, reservation: str | None = None) -> None:
        """Take the right to call `generate_seated` once; with a reservation, the seat that was kept for it.

        Raises EngineBusyError, ReservationLostError.
        """
        with self._lock:
            if reservation is not None:
                self._slot.present(reservation)
            elif self._full():
                raise EngineBusyError
            self._on_gpu += 1
            self._in_flight += 1

    def reserve(self) -> Reservation:
        """Hand the next slot to one caller for a moment. Raises SlotClosedError."""
        with self._lock:
            if self._full():
                raise SlotClosedError("a job holds the next slot already")
            token, seconds = self._slot.reserve(remaining_seconds=self._remaining())
        return Reservation(reservation=token, seconds=seconds)

    def confirm(self, reservation: str, run_id: str) -> Confirmation:
        """Keep the slot for a claimed run, as long as it is renewed. Raises ReservationLostError."""
        with self._lock:
            seconds = self._slot.confirm(reservation, run_id)
        return Confirmation(reservation=reservation, seconds=seconds, engine=self.ready())

    def renew(self, reservation: str) -> Reservation:
        """Keep a confirmed slot longer, within its limit. Raises ReservationLostError."""
        with self._lock:
            return Reservation(reservation=reservation, seconds=self._slot.renew(reservation))

    def release(self, reservation: str) -> Reservation:
        """Give the slot back; does nothing where it is gone already."""
        with self._lock:
            self._slot.release(reservation)
        return Reservation(reservation=reservation, seconds=0.0)

    def generate_seated(
        self,
        request: GenerateRequest,
        gathered: Gathered | None = None,
        *,
        on_event: OnEvent,
        cancelled: Cancelled,
    ) -> GenerateResult:
        """Do what `generate` does, for a checked request whose seat is taken; the seat is given back.

        Files are decoded here, while the GPU is another job's.
        """
        try:
            try:
                started = time.monotonic()
                media = decode_media(gathered)
                lined_up = time.monotonic()
                future = self._gpu.submit(
                    self._denoise, request, media, on_event=on_event, cancelled=cancelled
                )
            except BaseException:
                self._leave_gpu(None)
                raise
            future.add_done_callback(self._leave_gpu)
            prepare_seconds = lined_up - started if media else None
            if prepare_seconds is not None:
                with self._lock:
                    self._slot.note_decoding(prepare_seconds)
            made = _await_gpu(future, cancelled)
            waited = {"engine_wait": made.started - lined_up, "reference_prepare": prepare_seconds}
            return self._deliver(request, made, on_event=on_event, waited=waited)
        finally:
            with self._lock:
                self._in_flight -= 1

    def close(self) -> None:
        """Finish what runs, then end the threads; callers cancel first what they do not want finished."""
        self._gpu.shutdown(wait=True)
        self._encoder.shutdown(wait=True)

    def _denoise(
        self,
        request: GenerateRequest,
        media: Sequence["PreparedMedia"],
        *,
        on_event: OnEvent,
        cancelled: Cancelled,
    ) -> _Made:
        """Run on the GPU thread."""
        job = request.job
        started = time.monotonic()
        if cancelled():
            raise GenerationCancelledError(step=0)
        log.info("job %s: starting", job.job_id)
        running = self._paces.start(job)

        def on_progress(event: ProgressEvent) -> None:
            with self._lock:
                running.note(event)
            on_event(event)

        with self._lock:
            self._running = running
        try:
            generation = self._pipeline.generate(
                job,
                media,
                on_progress=on_progress,
                cancelled=cancelled,
                reuse_conditioning=request.delivery.conditioning_cache == "use",
            )
        finally:
            with self._lock:
                self._running = None
        with self._lock:
            self._paces.finish(running)
            served, self._served = self._served, self._served + 1
        return _Made(generation=generation, jobs_served=served, started=started)

    def _leave_gpu(self, _: object) -> None:
        with self._lock:
            self._on_gpu -= 1

    def _full(self) -> bool:
        """Whether every seat is taken or kept. Call with the lock held."""
        kept = int(self._slot.held)
        return self._on_gpu + kept >= GPU_SEATS or self._in_flight + kept >= SEATS

    def _remaining(self) -> float | None:
        """What the running job still needs of the GPU; 0 without one. Call with the lock held."""
        if self._on_gpu == 0:
            return 0.0
        return None if self._running is None else self._running.remaining_seconds

    def _deliver(
        self,
        request: GenerateRequest,
        made: _Made,
        *,
        on_event: OnEvent,
        waited: Mapping[str, float | None],
    ) -> GenerateResult:
        job, generation, card = request.job, made.generation, self._pipeline.card()
        on_event(ProgressEvent(stage=Stage.MUX))
        mux_started = time.monotonic()
        target = film_path(self._root, request.output)
        media, file = self._encoder.submit(_encode, target, request=request, generation=generation).result()
        ended = time.monotonic()
        seconds = generation.seconds.model_copy(
            update={**waited, "mux": ended - mux_started, "engine_total": ended - made.started}
        )
        log.info("job %s: finished in %.2f s", job.job_id, ended - made.started)
        return GenerateResult(
            job_id=job.job_id,
            output=request.output,
            job=job.model_dump(mode="json"),
            notes=[*job.notes, *_lora_notes(job, card), *generation.notes],
            environment=self._environment,
            checkpoint=card.checkpoint,
            loras=applied_loras(job, card.loras),
            backends=generation.backends,
            cold=made.jobs_served == 0,
            jobs_served=made.jobs_served,
            conditioning_cache=generation.conditioning_cache,
            tokens=generation.tokens,
            prompt=generation.prompt,
            references=generation.references,
            evaluations=generation.evaluations,
            seconds=seconds,
            peak_host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # Linux counts in KiB
            peak_device_bytes=generation.peak_device_bytes,
            media=media,
            files=[file],
        )


def _lora_notes(job: Job, card: PipelineCard) -> list[str]:
    return lora_notes(job, card.loras, transformer_task=card.checkpoint.transformer_task)


def _await_gpu(future: Future[_Made], cancelled: Cancelled) -> _Made:
    """Wait for the GPU thread; a job that still waits for its turn leaves the line when it is cancelled."""
    while not future.done():
        wait([future], timeout=0.2)
        if cancelled() and future.cancel():
            raise GenerationCancelledError(step=0)
    return future.result()


def _encode(
    target: Path, *, request: GenerateRequest, generation: Generation
) -> tuple[MediaSummary, OutputFile]:
    """Run on the encoder thread: the film under its name, or nothing."""
    with film_folder(target):
        media = encode_mp4(
            target,
            frames=[generation.frames],
            waveform=generation.waveform,
            sample_rate_hz=generation.sample_rate_hz,
            metadata={"comment": f"h3 job {request.job.job_id} seed {request.job.seed}"},
        )
    with target.open("rb") as film:
        digest = hashlib.file_digest(film, "sha256").hexdigest()
    size = target.stat().st_size
    return media, OutputFile(name=request.output, size_bytes=size, sha256=digest)
