"""A node in its fleet: what it must share with the others, and the card by which they know it.

The store is compared before the engine is loaded, the checkpoint's files once they are: a node that would
write elsewhere, or make other films under the same name, never starts. Knows no child processes.
"""

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import redis

from broker import nodes
from broker.agreements import (
    NameAgreement,
    StoreAgreement,
    agree_on_name,
    agree_on_store,
    fleet_store,
)
from broker.connection import hurry
from broker.errors import BrokerError, QueueUnavailableError
from queue_schemas.errors import EXIT_REFUSED
from queue_schemas.nodes import EngineState, NodeCard
from queue_schemas.results import EngineReady
from queue_schemas.versions import installed_versions
from storage.base import ArtifactStore
from storage.errors import StorageError, StorageUnavailableError
from storage.identity import read_identity, store_identity
from storage.known import missing_store
from worker.attempt import utc_now
from worker.errors import NodeStartError
from worker.machine import host_name
from worker.offers import offers_of

log = logging.getLogger(__name__)

CARD_TTL_SECONDS: Final = 30
CARD_EVERY_SECONDS: Final = 10.0
NAME_WATCH_SECONDS: Final = 12.0
"""A live node renews its card within this; one that does not is dead, and its name is free."""
_TICK_SECONDS: Final = 0.1


@dataclass(slots=True, kw_only=True)
class Membership:
    """One node's place in one fleet; `join` once, then `renew`, and `leave` at the end."""

    connection: redis.Redis
    fleet: str
    store: ArtifactStore
    pullers: int
    engine_url: str
    store_id: str = ""
    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    started_at: str = field(default_factory=utc_now)
    card: NodeCard | None = None

    def check_store(self) -> None:
        """Compare this node's store with the fleet's, if it has one, and write to it; `join` fixes it if not.

        Raises NodeStartError, QueueUnavailableError, StorageUnavailableError.
        """
        try:
            fleets = fleet_store(self.connection, fleet=self.fleet)
            if fleets is None:
                self.store_id = store_identity(self.store)
            else:  # nothing is made where the fleet's store may only be away
                self.store_id = read_identity(self.store) or ""
                self._compare_store(fleets)
            self.store.conditional_writes()
        except (StorageError, BrokerError) as error:
            raise self._refusal(error) from None

    def _compare_store(self, fleets: StoreAgreement) -> None:
        if not self.store_id and fleets.url == self.store.url:
            raise StorageUnavailableError(missing_store(fleets.url, found=None, wanted=fleets.store_id))
        if fleets.store_id != self.store_id:
            own = f"store {self.store_id[:8]}" if self.store_id else "no store yet"
            raise NodeStartError(
                f"the fleet {self.fleet!r} keeps its films in {fleets.url} (store {fleets.store_id[:8]},"
                f" fixed by node {fleets.node}), and this node would write to {self.store.url} ({own}); set"
                " H3_STORAGE_URL / --storage to that store, use another --fleet, or, to move the fleet, stop"
                f" its nodes and: h3-worker forget --store --fleet {self.fleet}",
                exit_code=EXIT_REFUSED,
            )

    def join(self, ready: EngineReady, *, stopped: Callable[[], bool]) -> None:
        """Show this node to the fleet, when its checkpoint is the fleet's and its name nobody else's.

        Raises NodeStartError, QueueUnavailableError. `stopped` ends the wait for a name.
        """
        assert self.store_id, "check_store sets it"
        own = StoreAgreement(node=ready.environment.node, store_id=self.store_id, url=self.store.url)
        self._compare_store(agree_on_store(self.connection, own, fleet=self.fleet))
        self._check_names(ready)
        card = self._card(ready)
        other = self._announce(card)
        if other is None:
            return
        log.info("node name %s: waiting to see whether its last holder is alive", card.node)
        deadline = time.monotonic() + NAME_WATCH_SECONDS
        seen = other.renewed_at
        while time.monotonic() < deadline and not stopped():
            time.sleep(_TICK_SECONDS)
            other = self._announce(card)
            if other is None:
                return
            if other.renewed_at != seen:
                raise NodeStartError(
                    f"the fleet {self.fleet!r} has a live node {card.node!r} already, on {other.host or '?'};"
                    " give this one another name with H3_NODE / --node",
                    exit_code=EXIT_REFUSED,
                )
        if other is not None and not stopped():
            self._announce(card, replacing=other.instance)

    def renew(self, ready: EngineReady | None, *, state: EngineState) -> None:
        """Renew the card with what the engine says; a queue that is away is patiently told about.

        Raises NodeStartError when the engine, started anew, is not the one that joined.
        """
        assert self.card is not None, "join sets it"
        if ready is not None:
            _check_unchanged(self.card, ready)
        card = self.card if ready is None else self._card(ready)
        card = card.model_copy(update={"engine": state, "renewed_at": utc_now()})
        try:
            other = self._announce(card)
        except QueueUnavailableError as error:
            log.warning("node card not renewed: %s", error)
            return
        if other is not None:
            log.error("node name %s was taken over by another node on %s", card.node, other.host or "?")

    def leave(self) -> None:
        """Take the card away, unless Redis does not answer at once: then it runs out."""
        if self.card is None:
            return
        hurry(self.connection)
        try:
            nodes.withdraw(self.connection, self.card.node, instance=self.instance, fleet=self.fleet)
        except QueueUnavailableError as error:
            log.warning("node card not withdrawn: %s", error)

    def _announce(self, card: NodeCard, *, replacing: str = "") -> NodeCard | None:
        self.card = card
        return nodes.announce(
            self.connection, card, ttl_seconds=CARD_TTL_SECONDS, replacing=replacing, fleet=self.fleet
        )

    def _check_names(self, ready: EngineReady) -> None:
        """Compare what the checkpoint's name and those of the LoRAs mean here and in the fleet."""
        node, checkpoint = ready.environment.node, ready.checkpoint
        identities = {file.role: file.identity for file in checkpoint.files}
        self._check_name(
            NameAgreement(node=node, kind="checkpoint", name=checkpoint.name, identities=identities),
            remedy="a resident set file",
        )
        for lora in ready.loras:
            self._check_name(
                NameAgreement(node=node, kind="lora", name=lora.name, identities={"lora": lora.identity}),
                remedy="--lora NAME=FILE",
            )

    def _check_name(self, own: NameAgreement, *, remedy: str) -> None:
        try:
            fleets = agree_on_name(self.connection, own, fleet=self.fleet)
        except BrokerError as error:
            raise self._refusal(error) from None
        if fleets.identities != own.identities:
            raise NodeStartError(
                f"{own.kind} {own.name!r} means other files in the fleet {self.fleet!r}, as node"
                f" {fleets.node} fixed: {differences(fleets.identities, own.identities)}; serve these under"
                f" another name ({remedy}), or, to fix the name anew, stop its nodes and:"
                f" h3-worker forget --{own.kind} {own.name} --fleet {self.fleet}",
                exit_code=EXIT_REFUSED,
            )

    def _refusal(self, error: StorageError | BrokerError) -> Exception:
        """Return an error that may pass as it is, and any other as a refusal of this node."""
        if isinstance(error, QueueUnavailableError):
            return error
        if isinstance(error, StorageUnavailableError) and not error.is_lasting:
            return error
        is_lasting = isinstance(error, StorageUnavailableError)
        return NodeStartError(str(error), exit_code=EXIT_REFUSED if is_lasting else error.code.exit_code)

    def _card(self, ready: EngineReady) -> NodeCard:
        node, checkpoint = ready.environment.node, ready.checkpoint
        return NodeCard(
            node=node,
            checkpoint=checkpoint.name,
            weights=checkpoint.weights,
            transformer_task=checkpoint.transformer_task,
            device=ready.environment.device,
            attention_backends=ready.attention_backends,
            started_at=self.started_at,
            offers=list(offers_of(ready, node=node)),
            storage_url=self.store.url,
            store_id=self.store_id,
            instance=self.instance,
            renewed_at=utc_now(),
            host=host_name(),
            engine_url=self.engine_url,
            engine=EngineState.READY,
            busy=ready.busy,
            jobs_served=ready.jobs_served,
            pullers=self.pullers,
            files=checkpoint.files,
            loras=ready.loras,
            version=installed_versions(["h3-blackwell-runtime"]).get("h3-blackwell-runtime", ""),
        )


def _check_unchanged(card: NodeCard, ready: EngineReady) -> None:
    """Refuse an engine that came back as another: jobs were claimed, and records named, for the first."""
    if ready.environment.node != card.node:
        raise NodeStartError(
            f"the engine calls itself node {ready.environment.node!r} now, not {card.node!r};"
            " start this node anew"
        )
    now, then = (ready.checkpoint.files, ready.loras), (card.files, card.loras)
    identities = [[[own.identity for own in kind] for kind in kinds] for kinds in (now, then)]
    if ready.checkpoint.name != card.checkpoint or identities[0] != identities[1]:
        raise NodeStartError(
            f"the engine serves other files than those of {card.checkpoint!r} with which this node joined its"
            " fleet; start this node anew"
        )


def differences(fleets: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Name both identities of every role on which two nodes differ."""
    parts = []
    for role in sorted(fleets.keys() | own.keys()):
        theirs, ours = fleets.get(role), own.get(role)
        if theirs != ours:
            parts.append(f"{role} there {_short(theirs)}, here {_short(ours)}")
    return ", ".join(parts)


def _short(identity: str | None) -> str:
    """Return the beginning of both hashes; a header's is often the same."""
    if identity is None:
        return "none"
    header, _, sample = identity.partition(".")
    return f"{header[:12]}.{sample[:12]}"
