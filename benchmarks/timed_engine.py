"""An engine whose jobs take a set time: for timing the rest.

Everything around it is the real thing. Run as `python -m benchmarks.timed_engine STEP_SECONDS FILE`, with
settings from the environment; it appends one JSON line per job to FILE: when it had the GPU.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from media.prepared import PreparedMedia
from model.base import Generation, OnProgress, PipelineCard
from model.errors import GenerationCancelledError, WrongCheckpointError
from queue_schemas.benchmark import Backends, CheckpointFile, CheckpointSet, Seconds, Tokens
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.geometry import SAMPLE_RATE_HZ, track_samples
from queue_schemas.jobs import ConventionsName, Job
from worker.command import reported
from worker.engine import Engine
from worker.serving import serve
from worker.settings import node_of, read_settings

CHECKPOINT: Final = "timed"


class TimedPipeline:
    """Sleeps instead of computing; its films are grey and silent."""

    def __init__(self, *, step_seconds: float, log: Path) -> None:
        self._step_seconds, self._log = step_seconds, log

    def card(self) -> PipelineCard:
        file = CheckpointFile(role="transformer", name="none", size_bytes=0, header_sha256="00" * 32)
        return PipelineCard(
            checkpoint=CheckpointSet(
                name=CHECKPOINT, weights="random", transformer_layout="pruned", files=[file]
            ),
            backends=_BACKENDS,
            attention_backends=["sdpa"],
            device="none",
            driver=None,
            versions={},
        )

    def check(self, job: Job) -> None:
        if job.checkpoint != CHECKPOINT:
            raise WrongCheckpointError(wanted=job.checkpoint, resident=CHECKPOINT)

    def count_tokens(self, text: str, *, conventions: ConventionsName) -> int:
        return len(text.split())

    def generate(
        self,
        job: Job,
        media: Sequence[PreparedMedia] = (),
        *,
        on_progress: OnProgress,
        cancelled: Callable[[], bool],
        reuse_conditioning: bool = True,
    ) -> Generation:
        began = time.monotonic()
        for step in range(1, job.steps + 1):
            if cancelled():
                raise GenerationCancelledError(step=step - 1)
            time.sleep(max(0.0, began + step * self._step_seconds - time.monotonic()))
            progress = ProgressEvent(
                stage=Stage.DENOISE, step=step, steps=job.steps, seconds=self._step_seconds
            )
            on_progress(progress)
        made = Generation(
            frames=np.full((job.frames, job.height, job.width, 3), 128, dtype=np.uint8),  # [F, H, W, 3]
            waveform=np.zeros((2, track_samples(job.frames)), dtype=np.float32),  # [2, N]
            sample_rate_hz=SAMPLE_RATE_HZ,
            tokens=Tokens(text=1, video=job.latent_shape.video_tokens, audio=job.latent_shape.audio_tokens),
            evaluations=job.steps,
            backends=_BACKENDS,
            seconds=Seconds(denoise_steps=[self._step_seconds] * job.steps),
        )
        with self._log.open("a") as log:
            log.write(json.dumps({"job_id": job.job_id, "began": began, "ended": time.monotonic()}) + "\n")
        return made


_BACKENDS: Final = Backends(
    attention="sdpa",
    transformer_dtype="none",
    text_encoder_dtype="none",
    video_vae_dtype="none",
    audio_vae_dtype="none",
)


def run_engine(*, step_seconds: float, log: Path) -> None:
    """Serve until a signal."""
    settings, _ = read_settings()

    def load(tell: Callable[[str], None]) -> Engine:
        pipeline = TimedPipeline(step_seconds=step_seconds, log=log)
        return Engine(pipeline, output_root=settings.output_dir, node=node_of(settings))

    serve(load, host="127.0.0.1", port=settings.port, api_token=None)


def main() -> None:
    """Serve as the arguments say."""
    with reported():
        run_engine(step_seconds=float(sys.argv[1]), log=Path(sys.argv[2]))


if __name__ == "__main__":
    main()
