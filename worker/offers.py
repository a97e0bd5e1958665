"""What needs a node satisfies, from what its engine says about itself."""

from queue_schemas.results import EngineReady


def offers_of(ready: EngineReady, *, node: str) -> tuple[str, ...]:
    """Return `checkpoint:NAME`, `attention:NAME` for each backend and `node:NAME`, sorted."""
    backends = (f"attention:{name}" for name in ready.attention_backends)
    return tuple(sorted((f"checkpoint:{ready.checkpoint.name}", f"node:{node}", *backends)))
