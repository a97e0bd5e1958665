"""Forget what a fleet has agreed on, when nobody who lives relies on it."""

import redis

from broker.agreements import forget_checkpoint, forget_store
from broker.nodes import live_nodes
from worker.errors import AgreementInUseError


def forget_agreements(
    connection: redis.Redis, *, fleet: str, store: bool, checkpoint: str | None
) -> list[str]:
    """Forget the fleet's store, a checkpoint's files, or both; return one sentence for each.

    Raises AgreementInUseError, QueueUnavailableError.
    """
    users = [
        card.node for card in live_nodes(connection, fleet=fleet) if store or card.checkpoint == checkpoint
    ]
    if users:
        raise AgreementInUseError(users)
    told = []
    if store:
        what = "forgotten" if forget_store(connection, fleet=fleet) else "not fixed; nothing to forget"
        told.append(f"fleet {fleet!r}: the store is {what}")
    if checkpoint is not None:
        done = forget_checkpoint(connection, checkpoint, fleet=fleet)
        what = "forgotten" if done else "not fixed; nothing to forget"
        told.append(f"fleet {fleet!r}: the meaning of checkpoint {checkpoint!r} is {what}")
    return told
