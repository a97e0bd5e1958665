"""Node card: what a live node says about itself in Redis, renewed by its supervisor and gone when it dies."""

from enum import StrEnum

from queue_schemas.base import Lax, Told
from queue_schemas.benchmark import CheckpointFile
from queue_schemas.loras import LoraCard


class EngineState(StrEnum):
    """What a node's engine did when its supervisor asked last."""

    READY = "ready"
    STARTING = "starting"
    """Loading, also after it ended and was started again."""
    LOST = "lost"
    """It does not answer."""


class NodeCard(Told):
    """One node and the resident set that it serves."""

    node: str
    """Unique in the fleet: host name and engine port, or what the operator chose."""
    checkpoint: str
    weights: str
    transformer_task: str | None = None
    """What its transformer was trained for, `fl2va` or `ref2va`; t2va runs on either. None: nothing tells."""
    device: str
    attention_backends: list[str]
    started_at: str
    offers: list[str] = []
    """What needs it satisfies: `checkpoint:NAME`, `node:NAME`, and one for each attention and LoRA it has."""
    storage_url: str | None = None
    """Where it writes, as an absolute address without secrets."""
    store_id: str | None = None
    """The identity of that store (`store.json`)."""
    instance: str = ""
    """Random, drawn by the supervisor at its start: tells two nodes of one name apart."""
    renewed_at: str = ""
    """Wall clock of the node, ISO 8601 UTC."""
    host: str = ""
    engine_url: str | None = None
    """As the node itself reaches it: usually on its loopback."""
    engine: Lax[EngineState] = EngineState.READY
    busy: bool = False
    jobs_served: int = 0
    """By this engine process."""
    pullers: int = 0
    files: list[CheckpointFile] = []
    """The files behind the checkpoint's name."""
    loras: list[LoraCard] = []
    """Those that its engine has loaded."""
    version: str = ""
    """Of this project, on that node."""
