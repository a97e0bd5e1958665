"""What comes back: the engine's answer to one request, and the manifest that ends a run."""

from queue_schemas.base import JsonFields, Told, Version1
from queue_schemas.benchmark import (
    Backends,
    CacheUse,
    CheckpointSet,
    Environment,
    MediaSummary,
    OutputFile,
    Seconds,
    Tokens,
)
from queue_schemas.events import EndStatus, JobError
from queue_schemas.loras import AppliedLora, LoraCard
from queue_schemas.receipts import PromptReceipt, ReferenceReceipt
from queue_schemas.references import Kind


class GenerateResult(Told):
    """The engine's answer: the file it wrote below its output root, and the facts for the record."""

    job_id: str
    output: str
    """Relative to the engine's output root."""
    job: JsonFields
    notes: list[str] = []
    environment: Environment
    checkpoint: CheckpointSet
    loras: list[AppliedLora] = []
    backends: Backends
    cold: bool
    jobs_served: int
    conditioning_cache: CacheUse = "off"
    tokens: Tokens | None = None
    prompt: PromptReceipt | None = None
    references: list[ReferenceReceipt] = []
    """In packed order; empty for t2va."""
    evaluations: int = 0
    seconds: Seconds = Seconds()
    peak_host_bytes: int | None = None
    peak_device_bytes: int | None = None
    media: MediaSummary | None = None
    files: list[OutputFile] = []


class StoredReference(Told):
    """The answer of `POST /references`: a file that the engine keeps for the requests that name it."""

    key: str
    """`references/<sha256>.<ext>`, the `source` of a reference."""
    sha256: str
    size_bytes: int
    kind: Kind
    form: str
    """What the file is, whatever it was called: `a PNG picture`."""
    width: int | None = None
    height: int | None = None
    """Upright pixels; None for a sound."""
    seconds: float | None = None
    """By the header; None for a picture."""


class EngineReady(Told):
    """The answer of `GET /ready`."""

    ready: bool
    busy: bool
    checkpoint: CheckpointSet
    backends: Backends
    environment: Environment
    attention_backends: list[str]
    loras: list[LoraCard] = []
    """Those that a job may name."""
    jobs_served: int
    output_root: str


class Manifest(Told):
    """The terminal record of a run, created once by put-if-absent; whoever creates it decides the outcome."""

    schema_version: Version1 = 1
    run_id: str
    job_id: str
    generation: int
    attempt: int
    status: EndStatus
    error: JobError | None = None
    files: dict[str, OutputFile] = {}
    """Role (`video`, `benchmark`, `request`) to the stored file; `name` is its key in the store."""
    prompt: PromptReceipt | None = None
    references: list[ReferenceReceipt] = []
    finished_at: str
