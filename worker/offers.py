"""What needs a node satisfies, from what its engine says about itself."""

from queue_schemas.results import EngineReady


def offers_of(ready: EngineReady, *, node: str) -> tuple[str, ...]:
    """Return `checkpoint:NAME`, `node:NAME`, and `attention:NAME` and `lora:NAME` for each one, sorted."""
    backends = (f"attention:{name}" for name in ready.attention_backends)
    loras = (f"lora:{lora.name}" for lora in ready.loras)
    return tuple(sorted((f"checkpoint:{ready.checkpoint.name}", f"node:{node}", *backends, *loras)))
