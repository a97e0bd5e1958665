"""The seam between the runtime and whoever serves it: `Pipeline`, what it yields, and the errors it raises.

Imports no torch, so an engine can be tested with another implementation. Arrays cross this seam on the host.

Shapes: F frames of height H and width W; N samples per channel.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from media.prepared import PreparedMedia
from queue_schemas.benchmark import Backends, CacheUse, CheckpointSet, Seconds, Tokens
from queue_schemas.events import ProgressEvent
from queue_schemas.jobs import ConventionsName, Job
from queue_schemas.loras import LoraCard
from queue_schemas.receipts import PromptReceipt, ReferenceReceipt

OnProgress = Callable[[ProgressEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One film and its sound, with what it took to make them."""

    frames: npt.NDArray[np.uint8]
    """[F, H, W, 3] RGB."""
    waveform: npt.NDArray[np.float32]
    """[2, N] in [-1, 1], left channel first, N = round(F × sample_rate_hz / 24)."""
    sample_rate_hz: int
    tokens: Tokens
    evaluations: int
    backends: Backends
    seconds: Seconds
    peak_device_bytes: int | None = None
    conditioning_cache: CacheUse = "off"
    prompt: PromptReceipt | None = None
    references: list[ReferenceReceipt] = field(default_factory=list)
    """In packed order."""
    notes: list[str] = field(default_factory=list)
    """What a person should know beyond the job's own notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCard:
    """What is resident, for `GET /ready` and the record."""

    checkpoint: CheckpointSet
    backends: Backends
    attention_backends: list[str]
    device: str
    driver: str | None
    versions: dict[str, str]
    loras: list[LoraCard] = field(default_factory=list)
    """Those that a job may name."""
    num_threads: int | None = None
    """Threads that one operation may use on the CPU."""


class Pipeline(Protocol):
    """A hot model set that makes one film at a time."""

    def card(self) -> PipelineCard:
        """Describe what is resident; cheap, and safe from any thread."""

    def check(self, job: Job) -> None:
        """Raise the error that `generate` would raise for this job before it costs anything."""

    def count_tokens(self, text: str, *, conventions: ConventionsName) -> int:
        """Return the text rows that a prompt or label takes; cheap, and safe from any thread."""

    def generate(
        self,
        job: Job,
        media: Sequence[PreparedMedia] = (),
        *,
        on_progress: OnProgress,
        cancelled: Callable[[], bool],
        reuse_conditioning: bool = True,
    ) -> Generation:
        """Make the film; `media` are the job's, as `media.references.prepare_references` returns them.

        Without `reuse_conditioning` prompt and media go through the text encoder whatever is kept of them.

        `cancelled` is asked before every step, and every 17 frames of a clip. Raises
        `model.errors.ModelError`.
        """
