"""The benchmark record: one JSON per attempt: what ran, on what, with what, and how long each part took.

Durations come from one machine's monotonic clock, except `queue_wait`, which compares Redis `TIME` to itself.
A field that does not apply (no GPU, a failed attempt) is null; nothing is guessed.
"""

from typing import Literal

from queue_schemas.base import JsonFields, Told, Version1
from queue_schemas.events import EndStatus, JobError
from queue_schemas.loras import AppliedLora
from queue_schemas.names import FileIdentity, TransformerTask
from queue_schemas.receipts import PromptReceipt, ReferenceReceipt

CacheUse = Literal["hit", "miss", "off"]
"""Whether the text encoder was asked: not on a hit. `off`: nothing is kept, or the request wanted it so."""


class CheckpointFile(FileIdentity):
    """One file that a role was loaded from."""

    role: str
    """`transformer`, `text_encoder`, `video_vae`, `audio_vae` or `tokenizer`."""
    name: str
    size_bytes: int | None
    """None for a tokenizer, which may have no file of its own."""


class CheckpointSet(Told):
    """The files behind the checkpoint's name."""

    name: str
    weights: Literal["real", "random"]
    """`random`: a synthetic checkpoint; figures on quality mean nothing."""
    transformer_layout: Literal["full", "pruned"]
    transformer_task: TransformerTask | None = None
    """What the transformer was trained for; t2va runs on either. None where nothing tells."""
    files: list[CheckpointFile]


class Environment(Told):
    """The machine and the software."""

    node: str
    device: str
    """`cpu`, or the GPU's name."""
    driver: str | None = None
    platform: str
    python: str
    versions: dict[str, str]
    git_commit: str | None = None
    num_threads: int | None = None


class Backends(Told):
    """What was actually used, not what was asked for."""

    attention: str
    transformer_dtype: str
    text_encoder_dtype: str
    video_vae_dtype: str
    audio_vae_dtype: str
    compiled: bool = False


class Tokens(Told):
    """Rows of the packed sequence."""

    text: int
    video: int
    audio: int
    conditions: int = 0
    """Rows of keyframes and references."""


class Seconds(Told):
    """Where the time went."""

    queue_wait: float | None = None
    """From being queued to being claimed."""
    engine_wait: float | None = None
    """In the engine, behind the job before: in no other figure."""
    reference_fetch: float | None = None
    """From their sources to the node."""
    reference_prepare: float | None = None
    """Decoding and scaling them, on the CPU."""
    reference_encode: float | None = None
    """Through the VAEs."""
    text_encode: float | None = None
    denoise: float | None = None
    """The whole loop."""
    denoise_steps: list[float] = []
    video_decode: float | None = None
    audio_decode: float | None = None
    mux: float | None = None
    upload: float | None = None
    engine_total: float | None = None
    """Inside the engine, from its turn on the GPU to the file's end."""
    total: float | None = None
    """From the claim of the job to the end of the upload of its film, less `engine_wait`."""


class OutputFile(Told):
    """One stored output."""

    name: str
    size_bytes: int
    sha256: str


class MediaSummary(Told):
    """What the film holds, as read back from the finished file."""

    width: int
    height: int
    frames: int
    fps: int
    video_codec: str
    audio_codec: str
    sample_rate_hz: int
    channels: int
    samples: int
    video_seconds: float
    audio_seconds: float


class BenchmarkRecord(Told):
    """One attempt at one job."""

    schema_version: Version1 = 1
    run_id: str
    job_id: str
    generation: int
    attempt: int
    status: EndStatus
    error: JobError | None = None
    request: JsonFields
    """The job, every field written out."""
    notes: list[str] = []
    environment: Environment | None = None
    checkpoint: CheckpointSet | None = None
    loras: list[AppliedLora] = []
    backends: Backends | None = None
    cold: bool | None = None
    """True for the first job that this engine process served."""
    jobs_served: int | None = None
    """Jobs that this engine process had served before."""
    conditioning_cache: CacheUse = "off"
    tokens: Tokens | None = None
    prompt: PromptReceipt | None = None
    references: list[ReferenceReceipt] = []
    """In packed order; empty for t2va."""
    evaluations: int | None = None
    evaluations_skipped: int = 0
    seconds: Seconds = Seconds()
    peak_host_bytes: int | None = None
    peak_device_bytes: int | None = None
    media: MediaSummary | None = None
    outputs: list[OutputFile] = []
    started_at: str
    """Wall clock, ISO 8601 UTC; for people, never for durations."""
    finished_at: str
