"""`h3 doctor`: is everything there that a sweep needs, and if not, what to do about it.

Every check ends in a finding, never in an exception: one fault must not hide the next. Storage is written a
small probe, and nothing is created where there is no store yet.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

import redis

from broker.address import show_address
from broker.connection import connect, queue_errors
from broker.errors import BrokerError, QueueAddressError
from broker.keys import round_key
from broker.nodes import live_nodes
from broker.overview import fleet_counts, queue_overview
from broker.refusals import QueueRefusesError
from client.fleet import StoreView, is_served, node_command_line, node_for, other_store
from client.settings import ClientSettings
from queue_schemas.nodes import EngineState, NodeCard
from storage.base import ArtifactStore
from storage.errors import StorageError
from storage.identity import read_identity
from storage.layout import PROBE_KEY
from storage.local import LocalStore
from storage.uri import open_store

OLDEST_REDIS: Final = (6, 2)
"""The first with LMOVE, by which nodes claim."""
LATENCY_MS: Final = 50.0
"""A claim takes several round trips; a slower server is felt between jobs."""
CLOCK_SECONDS: Final = 5.0
_PINGS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    subject: str
    is_fine: bool
    said: str
    remedy: str | None = None
    """What to do; always there when it is not fine."""

    def as_line(self) -> dict[str, Any]:
        line = {"subject": self.subject, "ok": self.is_fine, "said": self.said, "remedy": self.remedy}
        return {name: value for name, value in line.items() if value is not None}


def examine(settings: ClientSettings) -> list[Finding]:
    """Look at queue, storage and nodes, in this order."""
    findings: list[Finding] = []
    nodes: list[NodeCard] | None = None
    try:
        connection = connect(settings.redis_url)
    except QueueAddressError as error:
        findings.append(_fault("redis", str(error), remedy="name another by --redis or H3_REDIS_URL"))
    except BrokerError as error:
        findings.append(_fault("redis", str(error), remedy="h3-worker run --embedded starts one for a trial"))
    else:
        findings += _examined("redis", lambda: _redis(connection, settings.redis_url, fleet=settings.fleet))
        try:
            nodes = found = live_nodes(connection, fleet=settings.fleet)
            findings += _examined("queues", lambda: _queues(connection, found, settings=settings))
        except BrokerError as error:
            findings.append(_fault("nodes", str(error), remedy="repair Redis first"))
    try:
        store = open_store(settings.storage_url)
    except StorageError as error:
        return [
            *findings,
            _fault("storage", str(error), remedy="name another by --storage or H3_STORAGE_URL"),
        ]
    findings += _examined("storage", lambda: _storage(store))
    if nodes is None:  # nobody knows what lives
        return findings
    return [*findings, *_examined("nodes", lambda: _nodes(store, nodes, settings=settings))]


def _examined(subject: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Collect findings; an error of queue or storage becomes the last of them."""
    findings = []
    try:
        for finding in check():
            findings.append(finding)
    except (BrokerError, StorageError, redis.exceptions.RedisError) as error:
        findings.append(_fault(subject, str(error), remedy="repair that, then ask again"))
    return findings


def _redis(connection: redis.Redis, url: str, *, fleet: str) -> Iterator[Finding]:
    with queue_errors(connection):
        facts = connection.info()
        version = str(facts.get("redis_version", "0"))
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
        yield _finding(
            "redis version",
            numbers >= OLDEST_REDIS,
            f"{version} at {show_address(url)}",
            remedy=f"use {'.'.join(map(str, OLDEST_REDIS))} or newer",
        )
        policy = str(facts.get("maxmemory_policy", "unknown"))
        yield _finding(
            "redis eviction",
            policy == "noeviction",
            f"maxmemory-policy {policy}",
            remedy="set maxmemory-policy noeviction: an evicted entry is a lost job",
        )
        yield _finding(
            "redis durability",
            bool(facts.get("aof_enabled")),
            "appendonly yes" if facts.get("aof_enabled") else "appendonly no: a restart loses what waits",
            remedy="set appendonly yes; after a loss: h3 sweep --resume SWEEP",
        )
        yield _redis_write(connection, fleet=fleet)
        round_trips, offset = _clock(connection)
    latency_ms = statistics.median(round_trips) * 1_000
    yield _finding(
        "redis latency",
        latency_ms <= LATENCY_MS,
        f"{latency_ms:.1f} ms per call",
        remedy="use a server nearer to the nodes",
    )
    yield _finding(
        "redis clock",
        abs(offset) <= CLOCK_SECONDS,
        f"{offset:+.1f} s against this machine",
        remedy="set both clocks by NTP: waiting times and signed links go by them",
    )


def _redis_write(connection: redis.Redis, *, fleet: str) -> Finding:
    """Try a write: a full server and a replica answer everything else."""
    key = round_key(fleet, "doctor")
    try:
        connection.set(key, "1", ex=60)
        connection.delete(key)
    except QueueRefusesError as error:
        return _fault("redis write", f"it takes no writes ({error.reason})", remedy=error.remedy)
    return _finding("redis write", True, "a key can be written and removed")


def _clock(connection: redis.Redis) -> tuple[list[float], float]:
    """Return the seconds of some round trips, and how far the server's clock is ahead."""
    round_trips, offset = [], 0.0
    for _ in range(_PINGS):
        began, wall = time.perf_counter(), time.time()
        seconds, microseconds = connection.time()
        round_trips.append(time.perf_counter() - began)
        if round_trips[-1] == min(round_trips):  # the quickest answer tells the offset best
            offset = seconds + microseconds / 1e6 - wall - round_trips[-1] / 2
    return round_trips, offset


def _queues(
    connection: redis.Redis, nodes: Sequence[NodeCard], *, settings: ClientSettings
) -> Iterator[Finding]:
    start = _start(settings)
    for queue in queue_overview(connection, fleet=settings.fleet):
        yield from map(_foreign, queue.foreign)
        if queue.queued and not is_served(queue.needs, nodes):
            yield _fault(
                "queues",
                f"{queue.queued} runs wait for {', '.join(queue.needs)}, which no live node offers",
                remedy=f"start such a node: {node_for(queue.needs, start=start)}; or h3 cancel SWEEP",
            )
    counts = fleet_counts(connection, fleet=settings.fleet)
    yield from map(_foreign, counts.foreign)
    yield _finding(
        "queues",
        counts.parked == 0,
        f"{counts.dead} runs failed at their last attempt, {counts.parked} entries that no node could read",
        remedy="somebody else writes to this Redis, or nodes and clients differ in version",
    )


def _foreign(key: str) -> Finding:
    said = f"the key {key} holds something else than this project writes"
    return _fault("queues", said, remedy=f"remove it: redis-cli DEL {key}")


def _storage(store: ArtifactStore) -> Iterator[Finding]:
    if isinstance(store, LocalStore) and not store.root.is_dir():
        yield _fault(
            "storage",
            f"there is no folder {store.root}",
            remedy="a node makes it when it starts; if one has, name its folder: --storage",
        )
        return
    data = b"h3 doctor\n"
    store.put_bytes(PROBE_KEY, data)
    try:
        yield _finding("storage write", True, store.url)
        is_same = store.read_bytes(PROBE_KEY, limit_bytes=1_000) == data
        yield _finding(
            "storage read",
            is_same,
            "what was written comes back" if is_same else "something else comes back than was written",
            remedy="is there a cache between here and the store?",
        )
        is_readable = _opens(store, data)
        yield _finding(
            "storage links",
            is_readable,
            "a link opens" if is_readable else "a link to a film does not open from here",
            remedy="give the address a public_endpoint that this machine reaches, and check its clock",
        )
    finally:
        if isinstance(store, LocalStore):
            (store.root / PROBE_KEY).unlink(missing_ok=True)
    decides = store.conditional_writes()
    yield _finding(
        "storage conditional write",
        decides,
        "the second of two writers is refused" if decides else "both of two writers succeed",
        remedy="use a store that honours If-None-Match; until then a lock in Redis decides who commits",
    )


def _opens(store: ArtifactStore, data: bytes) -> bool:
    link = store.locate(PROBE_KEY)
    try:
        if isinstance(store, LocalStore):
            return (store.root / PROBE_KEY).read_bytes() == data
        with urlopen(link, timeout=10) as answer:  # the store's own signed link
            return bool(answer.read(1_000) == data)
    except (OSError, URLError, ValueError):
        return False


def _nodes(store: ArtifactStore, nodes: Sequence[NodeCard], *, settings: ClientSettings) -> Iterator[Finding]:
    if not nodes:
        said = f"no live node in fleet {settings.fleet!r}"
        yield _fault("nodes", said, remedy=f"start one: {_start(settings)}")
        return
    for node in nodes:
        weights = " with random weights" if node.weights == "random" else ""
        yield _finding(
            "nodes",
            node.engine is not EngineState.LOST,
            f"{node.node} serves {node.checkpoint}{weights} on {node.device}; its engine is {node.engine}",
            remedy="look at the node's log: its supervisor starts the engine again",
        )
    mismatch = other_store(StoreView(url=store.url, identity=read_identity(store)), nodes)
    if mismatch is not None:
        yield _fault(
            "nodes", mismatch, remedy="let client and nodes reach the same store: H3_STORAGE_URL, mounts"
        )


def _start(settings: ClientSettings) -> str:
    return node_command_line(settings.redis_url, settings.storage_url, fleet=settings.fleet)


def _finding(subject: str, is_fine: bool, said: str, *, remedy: str | None = None) -> Finding:
    return Finding(subject=subject, is_fine=is_fine, said=said, remedy=None if is_fine else remedy)


def _fault(subject: str, said: str, *, remedy: str) -> Finding:
    return Finding(subject=subject, is_fine=False, said=said, remedy=remedy)
