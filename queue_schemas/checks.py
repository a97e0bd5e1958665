"""`CheckReport`: what a job would cost and what would become of its references, said before anything runs.

Told by `h3 check` and by `POST /generate` with `dry_run`. Shares of a step are what the step would save
without that reference.
"""

from queue_schemas.base import JsonFields, Told, Version1
from queue_schemas.encoded_references import EncodedReference, EncodedSound


class CheckedSound(EncodedSound):
    """A clip's sound, its own or another file's."""


class CheckedReference(EncodedReference):
    """One reference or keyframe, in packed order."""

    step_share: float
    """Of one evaluation's work, 0 to 1: what it would save without this reference."""
    sound: CheckedSound | None = None


class CheckedTokens(Told):
    """Rows of the packed sequence."""

    prompt: int
    prompt_is_estimate: bool
    """True where no tokenizer was at hand: one token per 3.4 bytes of UTF-8."""
    text: int
    """All text rows: prompt, labels and vision blocks."""
    conditions: int
    """Rows of keyframes and references beside their text."""
    audio: int
    video: int
    total: int


class ExpectedMemory(Told):
    """An estimate for the engine's device, in bytes."""

    weights_min_bytes: int | None = None
    weights_max_bytes: int | None = None
    """All four models: the named transformer, the VAEs, and the smallest or largest published text encoder.
    None where the checkpoint's name is none that was published."""
    activations_bytes: int
    """Of one evaluation in bfloat16, by the number of rows."""


class ExpectedSeconds(Told):
    """What records of films that one device has made let expect."""

    device: str
    step: float
    """One evaluation."""
    total: float
    """The whole film, waiting aside."""
    records: int
    """How many films this follows from."""


class CheckReport(Told):
    """The answer to one job."""

    schema_version: Version1 = 1
    job: JsonFields
    """As it would be queued; files by their hash."""
    job_id: str
    references: list[CheckedReference] = []
    tokens: CheckedTokens
    step_share: float = 0.0
    """Of all references together."""
    memory: ExpectedMemory
    seconds: list[ExpectedSeconds] = []
    """Per device, fastest first; empty where no records are at hand."""
    notes: list[str] = []
