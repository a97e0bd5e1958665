"""Forget what a fleet has agreed on, when nobody who lives relies on it."""

import redis

from broker.agreements import NameKind, forget_name, forget_store
from broker.nodes import live_nodes
from worker.errors import AgreementInUseError


def forget_agreements(
    connection: redis.Redis, *, fleet: str, store: bool, checkpoint: str | None, lora: str | None = None
) -> list[str]:
    """Forget the fleet's store, a checkpoint's files, a LoRA's, or all; return one sentence for each.

    Raises AgreementInUseError, QueueUnavailableError.
    """
    users = [
        card.node
        for card in live_nodes(connection, fleet=fleet)
        if store or card.checkpoint == checkpoint or lora in {own.name for own in card.loras}
    ]
    if users:
        raise AgreementInUseError(users)
    told = []
    if store:
        what = "forgotten" if forget_store(connection, fleet=fleet) else "not fixed; nothing to forget"
        told.append(f"fleet {fleet!r}: the store is {what}")
    named: dict[NameKind, str | None] = {"checkpoint": checkpoint, "lora": lora}
    for kind, name in named.items():
        if name is not None:
            done = forget_name(connection, kind, name=name, fleet=fleet)
            what = "forgotten" if done else "not fixed; nothing to forget"
            told.append(f"fleet {fleet!r}: the meaning of {kind} {name!r} is {what}")
    return told
