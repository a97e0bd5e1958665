"""Node card: what a live node says about itself in Redis, renewed by its supervisor and gone when it dies."""

from pydantic import BaseModel, ConfigDict


class NodeCard(BaseModel):
    """One node and the resident set that it serves."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)

    node: str
    """Unique in the fleet: host name and engine port, or what the operator chose."""
    checkpoint: str
    weights: str
    device: str
    attention_backends: list[str]
    started_at: str
    offers: list[str] = []
    """What needs it satisfies: `checkpoint:NAME`, `attention:NAME` for each backend, `node:NAME`."""
    storage_url: str | None = None
    """Where it writes, as an absolute address without secrets."""
    store_id: str | None = None
    """The identity of that store (`store.json`)."""
