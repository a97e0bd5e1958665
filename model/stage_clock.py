"""Where a job's time goes, stage by stage, on one monotonic clock."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from model.base import OnProgress
from queue_schemas.benchmark import Seconds
from queue_schemas.events import ProgressEvent, Stage


class StageClock:
    """Announces each stage as it begins and keeps how long it took, waiting for the device at its end."""

    def __init__(self, device: torch.device, on_progress: OnProgress) -> None:
        self.device, self.on_progress = device, on_progress
        self._taken: dict[str, float] = {}

    @contextmanager
    def stage(self, stage: Stage, *, steps: int = 0) -> Iterator[None]:
        self.on_progress(ProgressEvent(stage=stage, steps=steps))
        began = time.monotonic()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._taken[stage.value] = time.monotonic() - began

    def seconds(self, *, denoise_steps: Sequence[float]) -> Seconds:
        """Return what the stages took so far, as the record has it."""
        return Seconds.model_validate({**self._taken, "denoise_steps": list(denoise_steps)})
