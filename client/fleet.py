"""What the live nodes mean for a submission: which checkpoint, who can serve it, where films will lie.

Functions over node cards; knows no connection.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.address import mask_secrets
from client.errors import CheckpointChoiceError
from client.handle import RunHandle
from queue_schemas.environment import DEFAULT_FLEET, DEFAULT_REDIS_URL
from queue_schemas.nodes import NodeCard
from queue_schemas.programs import typed
from queue_schemas.runs import needs_of, satisfies
from storage.known import missing_store
from storage.uri import DEFAULT_STORAGE_URL

_BUILT_IN: Final = "h3-tiny"
"""A node makes the files of this resident set itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreView:
    """The store as this client sees it."""

    url: str
    identity: str | None
    """None where nothing was ever written, or the store could not tell."""


def node_command_line(redis_url: str, storage_url: str, *, fleet: str) -> str:
    """Return what starts a node of this fleet, for hints: no password, nothing that is the default."""
    given = {
        "--redis": (mask_secrets(redis_url), DEFAULT_REDIS_URL),
        "--storage": (storage_url, DEFAULT_STORAGE_URL),
        "--fleet": (fleet, DEFAULT_FLEET),
    }
    flags = [f"{name} {shlex.quote(value)}" for name, (value, default) in given.items() if value != default]
    return " ".join([shlex.quote(typed("h3-worker")), "run", *flags])


def node_for(needs: Iterable[str], *, start: str) -> str:
    """Return the command line `start` with what a node must have besides; DIR and FILE are the reader's."""
    named = sorted(map(_split, needs), key=_kind_order)
    checkpoints = [name for kind, name in named if kind == "checkpoint"]
    flags = ["--models-dir DIR"] if set(checkpoints) - {_BUILT_IN} else []
    flags += [f"--checkpoint {name}" for name in checkpoints]
    flags += [f"--lora {name}=FILE" for kind, name in named if kind == "lora"]
    flags += [f"--node {name}" for kind, name in named if kind == "node"]
    return " ".join([start, *flags])


def offers_of(card: NodeCard) -> list[str]:
    """Return the needs that a node satisfies; cards of older nodes do not list them."""
    if card.offers:
        return card.offers
    backends = [f"attention:{name}" for name in card.attention_backends]
    return sorted([f"checkpoint:{card.checkpoint}", f"node:{card.node}", *backends])


def only_checkpoint(nodes: Sequence[NodeCard], *, start: str) -> str:
    """Return the one checkpoint that is served; `start` starts a node. Raises CheckpointChoiceError."""
    served = sorted({node.checkpoint for node in nodes})
    if len(served) != 1:
        raise CheckpointChoiceError(served, start=start)
    return served[0]


def is_served(needs: list[str], nodes: Iterable[NodeCard]) -> bool:
    return any(satisfies(offers_of(node), needs) for node in nodes)


def may_be_served(run: RunHandle, nodes: Sequence[NodeCard]) -> bool:
    """Say whether a live node could be at a run; any could where the job is not known here."""
    return bool(nodes) if run.job is None else is_served(needs_of(run.job, run.key), nodes)


def waiting_notes(asked: Iterable[list[str]], *, nodes: Sequence[NodeCard], start: str) -> list[str]:
    """Return one sentence per set of needs that no live node satisfies: what is missing, what is served.

    `start` is the command line of a node of this fleet, less its checkpoint.
    """
    missing = sorted({tuple(needs) for needs in asked if not is_served(needs, nodes)})
    return [_waiting_note(list(needs), nodes=nodes, start=start) for needs in missing]


def random_weight_notes(asked: Iterable[list[str]], *, nodes: Sequence[NodeCard]) -> list[str]:
    """Return one sentence per serving resident set that only pretends to be a model."""
    serving = [
        node for needs in {tuple(n) for n in asked} for node in nodes if is_served(list(needs), [node])
    ]
    names = sorted({node.checkpoint for node in serving if node.weights == "random"})
    return [f"{name} has random weights: the films show nothing" for name in names]


def other_store(store: StoreView, nodes: Iterable[NodeCard]) -> str | None:
    """Return what to do when a live node writes to another store than this client reads, else None.

    Identities decide where both are known: one store may have several addresses.
    """
    for node in nodes:
        if node.store_id is not None:
            differs = node.store_id != store.identity
        else:
            differs = node.storage_url is not None and node.storage_url != store.url
        if differs and node.store_id is not None and node.storage_url == store.url:
            found = missing_store(store.url, found=store.identity, wanted=node.store_id)
            return f"{found}; node {node.node} writes to that store"
        if differs:
            written = node.storage_url or "another store"
            return f"this client looks in {store.url}, node {node.node} writes to {written}: set --storage"
    return None


def _waiting_note(needs: list[str], *, nodes: Sequence[NodeCard], start: str) -> str:
    wanted = " with ".join(f"{kind} {name!r}" for kind, name in sorted(map(_split, needs), key=_kind_order))
    start = node_for(needs, start=start)
    if not nodes:
        return f"no live node serves {wanted}; the job waits until one does. Start a node: {start}"
    served = sorted({_summary(node) for node in nodes})
    return (
        f"no live node serves {wanted}; the job waits until one does: {start}."
        f" Served now: {'; '.join(served)}"
    )


_KINDS = ("checkpoint", "attention", "lora", "node")


def _kind_order(need: tuple[str, str]) -> int:
    return _KINDS.index(need[0]) if need[0] in _KINDS else len(_KINDS)


def _split(need: str) -> tuple[str, str]:
    kind, _, name = need.partition(":")
    return kind, name


def _summary(node: NodeCard) -> str:
    loras = f"; loras {', '.join(lora.name for lora in node.loras)}" if node.loras else ""
    return f"{node.checkpoint} (attention {', '.join(node.attention_backends) or 'auto only'}{loras})"
