"""`h3 doctor`: every fault is found, with its remedy, and one does not hide the next."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from own_redis import OwnRedis

from broker.errors import QueueUnavailableError
from client.client import H3Client
from client.doctor import Finding, examine
from client.settings import ClientSettings
from storage.identity import store_identity
from storage.local import LocalStore

if TYPE_CHECKING:
    from small_node import FakeNode


@pytest.fixture
def look(redis_url: str, storage: Path) -> Callable[..., dict[str, Finding]]:
    """Examine; return the faults by subject."""

    def run(**settings: Any) -> dict[str, Finding]:
        chosen = {"redis_url": redis_url, "storage_url": str(storage), **settings}
        return {f.subject: f for f in examine(ClientSettings(**chosen)) if not f.is_fine}

    return run


def test_a_healthy_fleet_has_no_fault_but_what_this_server_lacks(
    look: Callable[..., dict[str, Finding]], node: "FakeNode", storage: Path
) -> None:
    node.announce("h3-tiny", store_id=store_identity(LocalStore(storage)))
    before = sorted(storage.rglob("*"))

    faults = look()

    assert set(faults) == {"redis durability"}  # the tests' server keeps nothing
    assert faults["redis durability"].remedy is not None
    assert "appendonly yes" in faults["redis durability"].remedy
    assert sorted(storage.rglob("*")) == before


def test_redis_settings_that_lose_jobs_are_faults(
    look: Callable[..., dict[str, Finding]], node: "FakeNode", storage: Path
) -> None:
    node.connection.config_set("maxmemory-policy", "allkeys-lru")
    try:
        faults = look()
    finally:
        node.connection.config_set("maxmemory-policy", "noeviction")

    assert faults["redis eviction"].said == "maxmemory-policy allkeys-lru"
    assert "noeviction" in (faults["redis eviction"].remedy or "")


def test_what_is_unreachable_does_not_hide_the_rest(
    look: Callable[..., dict[str, Finding]], storage: Path
) -> None:
    faults = look(redis_url="redis://127.0.0.1:1/0")

    assert set(faults) == {"redis", "storage"}  # who lives is not known
    assert "127.0.0.1:1" in faults["redis"].said
    assert "there is no folder" in faults["storage"].said
    assert not storage.exists()
    assert look(storage_url="ftp://x")["storage"].said.startswith("no storage speaks")
    assert look(redis_url="http://x")["redis"].remedy == "name another by --redis or H3_REDIS_URL"


def test_a_store_that_cannot_be_written_is_a_fault(
    look: Callable[..., dict[str, Finding]], storage: Path, tmp_path: Path
) -> None:
    storage.mkdir()
    (storage / "probe.txt").mkdir()

    assert "cannot write" in look()["storage"].said


def test_a_node_that_stores_elsewhere_and_runs_that_nobody_serves_are_faults(
    look: Callable[..., dict[str, Finding]], client: H3Client, node: "FakeNode", storage: Path
) -> None:
    store_identity(LocalStore(storage))
    node.announce("h3-tiny", store_id="0" * 32, storage_url="file:///films")
    client.sweep(["a fox", "a wave"], [1], fields={"checkpoint": "h3"})

    faults = look()

    assert "writes to file:///films: set --storage" in faults["nodes"].said
    assert "2 runs wait for checkpoint:h3" in faults["queues"].said
    assert "--models-dir DIR --checkpoint h3;" in (faults["queues"].remedy or "")


@pytest.mark.parametrize(
    ("found", "said"), [(False, "has no store.json, so the store 00000000"), (True, "not 00")]
)
def test_another_store_under_the_address_of_the_nodes_is_a_fault(
    look: Callable[..., dict[str, Finding]], node: "FakeNode", storage: Path, found: bool, said: str
) -> None:
    storage.mkdir()
    if found:
        store_identity(LocalStore(storage))
    node.announce("h3-tiny", store_id="0" * 32, storage_url=storage.as_uri())

    fault = look()["nodes"]

    assert said in fault.said
    assert "mount" in fault.said
    assert "set --storage" not in fault.said


def test_a_redis_that_takes_no_writes_is_a_fault_and_refuses_a_submission(
    look: Callable[..., dict[str, Finding]], own_redis: OwnRedis, make_job: Callable[..., Any], storage: Path
) -> None:
    client = H3Client(redis_url=own_redis.url, storage_url=str(storage))
    client.submit(make_job())
    server = redis.Redis.from_url(own_redis.url)
    server.config_set("maxmemory", 100_000)

    full = look(redis_url=own_redis.url)["redis write"]
    with pytest.raises(QueueUnavailableError, match="its memory is full"):
        client.submit(make_job(seed=8))
    server.config_set("maxmemory", 0)
    server.replicaof("127.0.0.1", "1")
    replica = look(redis_url=own_redis.url)["redis write"]
    server.close()

    assert "OOM" in full.said
    assert "raise its maxmemory" in (full.remedy or "")
    assert "READONLY" in replica.said


def test_what_somebody_else_wrote_is_named_and_hides_nothing(
    look: Callable[..., dict[str, Finding]],
    client: H3Client,
    node: "FakeNode",
    make_job: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    node.announce("h3-tiny")
    node.connection.sadd("h3:nodes", b"\xff")
    client.submit(make_job())
    node.connection.hset("h3:queues", "junk", '{"priority":"high","needs":[]}')
    for key in ("rq:queue:junk", "rq:wip:junk", "h3:dead"):
        node.connection.set(key, "s")

    overview, cards, faults = client.jobs(), client.nodes(), look()

    assert (overview.counts.dead, len(cards)) == (0, 1)
    assert sum(queue.queued for queue in overview.queues) == 1
    assert "redis-cli DEL" in (faults["queues"].remedy or "")
    for named in ("rq:queue:junk", "rq:wip:junk", "h3:dead", "xff"):
        assert named in caplog.text
    node.connection.set("h3:queues", "s")
    assert "redis-cli DEL h3:queues" in look()["queues"].said
