"""`FakePipeline`: a real implementation of the Pipeline seam that draws small films without torch.

Run as a program it is an engine, with settings from the environment as usual.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from model.base import Generation, OnProgress, PipelineCard
from model.errors import GenerationCancelledError, WrongCheckpointError
from queue_schemas.benchmark import Backends, CheckpointFile, CheckpointSet, Seconds, Tokens
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.geometry import SAMPLE_RATE_HZ, track_samples
from queue_schemas.jobs import ConventionsName, Job
from queue_schemas.loras import LoraCard
from queue_schemas.receipts import PromptReceipt, ReferenceReceipt

CHECKPOINT = "h3-fake"
POISON = "poison"
"""A prompt with this word makes the pipeline raise."""
HOLD = "hold"
"""A prompt with this word makes every step wait until `release` is set."""
CRASH = "crash"
"""A prompt with this word kills the process, as a fault of the GPU would."""


class FakePipeline:
    """Moving gradients and a tone; steps are counted, and can be held open by a test."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.in_step = threading.Event()
        """Set while a held step runs."""
        self.loras: list[LoraCard] = []
        self.steps_run = 0
        self.cancelled = 0
        self._asked: Callable[[], bool] = lambda: False

    def is_asked_to_stop(self) -> bool:
        """Say whether the latest job has been cancelled, before the pipeline itself looks."""
        return self._asked()

    def card(self) -> PipelineCard:
        header = os.environ.get("FAKE_HEADER", "00" * 32)
        files = [CheckpointFile(role="transformer", name="fake", size_bytes=1, header_sha256=header)]
        return PipelineCard(
            checkpoint=CheckpointSet(
                name=CHECKPOINT, weights="random", transformer_layout="pruned", files=files
            ),
            backends=self._backends(),
            attention_backends=["sdpa"],
            loras=self.loras,
            device="cpu",
            driver=None,
            versions={"numpy": np.__version__},
        )

    def check(self, job: Job) -> None:
        if job.checkpoint != CHECKPOINT:
            raise WrongCheckpointError(wanted=job.checkpoint, resident=CHECKPOINT)

    def count_tokens(self, text: str, *, conventions: ConventionsName) -> int:
        return len(text.split())

    def generate(
        self,
        job: Job,
        media: Sequence[Any] = (),
        *,
        on_progress: OnProgress,
        cancelled: Callable[[], bool],
        reuse_conditioning: bool = True,
    ) -> Generation:
        self._asked = cancelled
        on_progress(ProgressEvent(stage=Stage.TEXT_ENCODE))
        for step in range(job.steps):
            if cancelled():
                self.cancelled += 1
                raise GenerationCancelledError(step=step)
            self._step(job.prompt)
            progress = ProgressEvent(stage=Stage.DENOISE, step=step + 1, steps=job.steps, seconds=0.001)
            on_progress(progress)
        if CRASH in job.prompt:
            os._exit(9)
        if POISON in job.prompt:
            raise ValueError("this prompt breaks the pipeline")
        shape = job.latent_shape
        return Generation(
            frames=_frames(job),
            waveform=_tone(track_samples(job.frames)),
            sample_rate_hz=SAMPLE_RATE_HZ,
            tokens=Tokens(text=8, video=shape.video_tokens, audio=shape.audio_tokens),
            conditioning_cache="miss" if reuse_conditioning else "off",
            prompt=PromptReceipt(tokens=8, features_sha256="ab" * 32),
            references=[_receipt(item, number) for number, item in enumerate(media)],
            evaluations=job.steps,
            backends=self._backends(),
            seconds=Seconds(text_encode=0.001, denoise=0.01, denoise_steps=[0.001] * job.steps),
            notes=["made by a fake pipeline"],
        )

    def _step(self, prompt: str) -> None:
        if HOLD in prompt:
            self.in_step.set()
            deadline = time.monotonic() + 30
            while not self.release.wait(0.01) and time.monotonic() < deadline:
                pass
            self.in_step.clear()
        self.steps_run += 1

    @staticmethod
    def _backends() -> Backends:
        return Backends(
            attention="sdpa",
            transformer_dtype="float32",
            text_encoder_dtype="float32",
            video_vae_dtype="float32",
            audio_vae_dtype="float32",
        )


def _receipt(item: Any, number: int) -> ReferenceReceipt:
    """A prepared medium as the model would tell of it; only pictures and clips have a size."""
    height, width = item.pixels.shape[:2] if item.kind == "image" else (None, None)
    return ReferenceReceipt(
        place=item.place,
        label=f"<Picture {number + 1}>",
        kind=item.kind,
        sha256=item.sha256,
        changes=item.changes,
        width=width,
        height=height,
        text_tokens=6,
        tokens=4,
        rows=(8 + 10 * number, 18 + 10 * number),
        latent_sha256="cd" * 32,
    )


def _frames(job: Job) -> np.ndarray:
    rows = np.arange(job.height, dtype=np.uint8)[None, :, None, None]
    time_axis = np.arange(job.frames, dtype=np.uint8)[:, None, None, None] * 8
    return np.ascontiguousarray(
        np.broadcast_to(rows + time_axis, (job.frames, job.height, job.width, 3))
    )  # [F, H, W, 3]


def _tone(samples: int) -> np.ndarray:
    wave = 0.2 * np.sin(2 * np.pi * 440 * np.arange(samples) / SAMPLE_RATE_HZ)
    return np.stack([wave, wave]).astype(np.float32)  # [2, N]


def main() -> None:
    """Serve a fake pipeline with the settings of the environment."""
    from worker.command import reported
    from worker.engine import Engine
    from worker.engine_log import EngineLog
    from worker.serving import serve
    from worker.settings import node_of, read_settings

    settings, _ = read_settings()

    def load(tell: Callable[[str], None]) -> Engine:
        tell("drawing gradients")
        return Engine(FakePipeline(), output_root=settings.output_dir, node=node_of(settings))

    with reported():
        settings.output_dir.mkdir(parents=True, exist_ok=True)
        logging.getLogger().addHandler(EngineLog(settings.output_dir, node=node_of(settings)))
        serve(load, host="127.0.0.1", port=settings.port, api_token=settings.api_token)


if __name__ == "__main__":
    main()
