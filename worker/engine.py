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
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from media.encode import encode_mp4
from model.base import Generation, Pipeline, PipelineCard
from model.errors import GenerationCancelledError
from queue_schemas.benchmark import MediaSummary, OutputFile
from queue_schemas.errors import NotImplementedWorkflowError
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.jobs import IMPLEMENTED_WORKFLOWS, Job
from queue_schemas.loras import LoraCard, applied_loras, lora_notes
from queue_schemas.requests import GenerateRequest
from queue_schemas.reservations import Confirmation, Reservation
from queue_schemas.results import EngineReady, GenerateResult
from worker.errors import EngineBusyError, SlotClosedError
from worker.film_path import film_folder, film_path
from worker.machine import describe_machine, node_name
from worker.next_slot import NextSlot
from worker.pace import Paces, RunningJob

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

    def __init__(self, pipeline: Pipeline, *, output_root: Path, node: str | None = None) -> None:
        self._pipeline = pipeline
        self._root = output_root.resolve()
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
        """Raise what `generate` would raise for this request before it costs anything."""
        if request.job.workflow not in IMPLEMENTED_WORKFLOWS:
            raise NotImplementedWorkflowError(request.job.workflow)
        self._pipeline.check(request.job)
        film_path(self._root, request.output)

    def describe(self, request: GenerateRequest) -> GenerateResult:
        """Answer a dry run: the request was checked, nothing is made."""
        card = self._pipeline.card()
        return GenerateResult(
            job_id=request.job.job_id,
            output=request.output,
            job=request.job.model_dump(mode="json"),
            notes=[*request.job.notes, *_lora_notes(request.job, card)],
            environment=self._environment,
            checkpoint=card.checkpoint,
            loras=applied_loras(request.job, card.loras),
            backends=card.backends,
            cold=self._served == 0,
            jobs_served=self._served,
            dry_run=True,
        )

    def generate(
        self, request: GenerateRequest, *, on_event: OnEvent, cancelled: Cancelled
    ) -> GenerateResult:
        """Make the film and return the facts about it; blocks the calling thread until its file is there.

        Raises EngineBusyError, GenerationCancelledError, and what the pipeline and the encoder raise.
        """
        self.check(request)
        if request.delivery.dry_run:
            return self.describe(request)
        self.take_seat()
        return self.generate_seated(request, on_event=on_event, cancelled=cancelled)

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
        self, request: GenerateRequest, *, on_event: OnEvent, cancelled: Cancelled
    ) -> GenerateResult:
        """Do what `generate` does, for a checked request whose seat is taken; the seat is given back."""
        seated = time.monotonic()
        try:
            future = self._gpu.submit(self._denoise, request.job, on_event, cancelled)
            future.add_done_callback(self._leave_gpu)
            made = _await_gpu(future, cancelled)
            return self._deliver(request, made, on_event, seated=seated)
        finally:
            with self._lock:
                self._in_flight -= 1

    def close(self) -> None:
        """Finish what runs, then end the threads; callers cancel first what they do not want finished."""
        self._gpu.shutdown(wait=True)
        self._encoder.shutdown(wait=True)

    def _denoise(self, job: Job, on_event: OnEvent, cancelled: Cancelled) -> _Made:
        """Run on the GPU thread."""
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
            generation = self._pipeline.generate(job, on_progress=on_progress, cancelled=cancelled)
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
        self, request: GenerateRequest, made: _Made, on_event: OnEvent, *, seated: float
    ) -> GenerateResult:
        job, generation, card = request.job, made.generation, self._pipeline.card()
        on_event(ProgressEvent(stage=Stage.MUX))
        mux_started = time.monotonic()
        target = film_path(self._root, request.output)
        media, file = self._encoder.submit(_encode, target, request=request, generation=generation).result()
        ended = time.monotonic()
        seconds = generation.seconds.model_copy(
            update={
                "engine_wait": made.started - seated,
                "mux": ended - mux_started,
                "engine_total": ended - made.started,
            }
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
            tokens=generation.tokens,
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
