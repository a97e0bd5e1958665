"""A node's name belongs to one living instance; the hint for submitting; the port of the embedded queue."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from own_redis import OwnRedis
from somebody import as_somebody, open_folder

from broker.agreements import StoreAgreement, agree_on_store, fleet_store
from broker.connection import connect
from broker.nodes import announce, live_nodes
from queue_schemas.nodes import EngineState
from storage.errors import StorageUnavailableError
from storage.identity import store_identity
from storage.local import LocalStore
from worker import embedded_redis, membership
from worker.embedded_redis import start_redis
from worker.engine import Engine
from worker.errors import AgreementInUseError, NodeStartError, SettingsError
from worker.forgetting import forget_agreements
from worker.membership import Membership
from worker.settings import Settings, node_of
from worker.submit_hint import submit_command
from worker.supervisor import NodePlan, check_plan

MakeMembership = Callable[[], Membership]


@pytest.fixture
def member(redis_connection: redis.Redis, tmp_path: Path) -> MakeMembership:
    def make() -> Membership:
        made = Membership(
            connection=redis_connection,
            fleet="h3",
            store=LocalStore(tmp_path / "store"),
            pullers=2,
            engine_url="http://127.0.0.1:8033",
        )
        made.check_store()
        return made

    return make


def never() -> bool:
    return False


def test_a_card_tells_what_the_engine_did_when_it_was_asked_last(
    member: MakeMembership, engine: Engine, redis_connection: redis.Redis
) -> None:
    node = member()
    ready = engine.ready()
    trained = ready.checkpoint.model_copy(update={"transformer_task": "ref2va"})
    node.join(ready.model_copy(update={"checkpoint": trained}), stopped=never)
    (joined,) = live_nodes(redis_connection)
    engine.take_seat()

    node.renew(engine.ready(), state=EngineState.READY)
    (busy,) = live_nodes(redis_connection)
    node.renew(None, state=EngineState.STARTING)
    (starting,) = live_nodes(redis_connection)

    assert (joined.engine, joined.busy, joined.transformer_task) == (EngineState.READY, False, "ref2va")
    assert (busy.engine, busy.busy, busy.transformer_task) == (EngineState.READY, True, None)
    assert (starting.engine, starting.node) == (EngineState.STARTING, "test-node")
    assert starting.offers == ["attention:sdpa", "checkpoint:h3-fake", "node:test-node"]


def test_a_queue_that_takes_no_writes_costs_the_card_and_not_the_node(
    own_redis: OwnRedis, engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(own_redis.url)
    store = LocalStore(tmp_path / "store")
    node = Membership(connection=connection, fleet="h3", store=store, pullers=1, engine_url="")
    node.check_store()
    node.join(engine.ready(), stopped=never)

    own_redis.refuse_as_full()
    node.renew(engine.ready(), state=EngineState.READY)
    own_redis.accept()
    connection.delete("h3:node:test-node")
    node.renew(engine.ready(), state=EngineState.READY)

    assert "card not renewed: the Redis at 127.0.0.1" in caplog.text
    assert "takes no commands (OOM: its memory is full)" in caplog.text
    assert [card.node for card in live_nodes(connection)] == ["test-node"]


def test_an_engine_that_comes_back_as_another_ends_its_node(member: MakeMembership, engine: Engine) -> None:
    node = member()
    ready = engine.ready()
    node.join(ready, stopped=never)
    other_files = [file.model_copy(update={"sample_sha256": "11" * 32}) for file in ready.checkpoint.files]
    other_set = ready.checkpoint.model_copy(update={"files": other_files})
    other_name = ready.environment.model_copy(update={"node": "other"})

    for changed, says in (
        ({"checkpoint": other_set}, "other files"),
        ({"environment": other_name}, "'other'"),
    ):
        with pytest.raises(NodeStartError, match=says):
            node.renew(ready.model_copy(update=changed), state=EngineState.READY)
    node.renew(ready, state=EngineState.READY)


def test_a_name_that_a_living_node_has_is_refused(member: MakeMembership, engine: Engine) -> None:
    first, second = member(), member()
    first.join(engine.ready(), stopped=never)
    beating = threading.Event()

    def beat() -> None:
        while not beating.wait(0.05):
            first.renew(None, state=EngineState.READY)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(NodeStartError, match=r"a live node 'test-node' already.*--node"):
            second.join(engine.ready(), stopped=never)
    finally:
        beating.set()
        thread.join()


def test_the_name_of_a_node_that_died_is_free_once_it_missed_its_beat(
    member: MakeMembership,
    engine: Engine,
    redis_connection: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "NAME_WATCH_SECONDS", 0.3)
    dead, new = member(), member()
    dead.join(engine.ready(), stopped=never)

    new.join(engine.ready(), stopped=never)

    (card,) = live_nodes(redis_connection)
    assert card.instance == new.instance
    dead.leave()  # it was only frozen; the name is no longer its own
    assert live_nodes(redis_connection) == [card]
    assert announce(redis_connection, dead.card or card, ttl_seconds=30) == card
    new.leave()
    assert live_nodes(redis_connection) == []


def test_what_stands_in_the_place_of_an_agreement_is_told_with_its_key(
    member: MakeMembership, redis_connection: redis.Redis
) -> None:
    redis_connection.set("h3:store", "a folder")

    with pytest.raises(NodeStartError, match="redis-cli DEL h3:store"):
        member()


def test_what_a_fleet_agreed_on_is_forgotten_once_no_node_goes_by_it(
    member: MakeMembership, engine: Engine, redis_connection: redis.Redis
) -> None:
    node = member()
    assert fleet_store(redis_connection) is None  # a node that never joined has fixed nothing
    node.join(engine.ready(), stopped=never)

    def forget() -> list[str]:
        return forget_agreements(redis_connection, fleet="h3", store=True, checkpoint="h3-fake")

    with pytest.raises(AgreementInUseError, match="test-node; stop them first"):
        forget()
    node.leave()
    told = forget()

    assert [sentence.rpartition(" ")[2] for sentence in told] == ["forgotten", "forgotten"]
    assert redis_connection.exists("h3:store", "h3:checkpoint:h3-fake") == 0
    assert "nothing to forget" in forget()[0]


def test_a_fleet_keeps_the_store_of_its_first_node(redis_connection: redis.Redis) -> None:
    first = StoreAgreement(node="a", store_id="1" * 32, url="s3://films")
    second = StoreAgreement(node="b", store_id="2" * 32, url="s3://others")

    assert agree_on_store(redis_connection, first) == first
    assert agree_on_store(redis_connection, second) == first
    assert agree_on_store(redis_connection, second, fleet="night") == second


def test_a_store_that_can_only_be_read_ends_the_start(redis_connection: redis.Redis) -> None:
    with open_folder() as folder:
        store = LocalStore(folder)
        store_identity(store)
        folder.chmod(0o555)
        member = Membership(connection=redis_connection, fleet="h3", store=store, pullers=1, engine_url="")

        with (
            as_somebody(),
            pytest.raises(NodeStartError, match=r"cannot create .*: this user may not") as caught,
        ):
            member.check_store()

    assert caught.value.exit_code == 2


def test_a_store_that_cannot_be_written_ends_the_start(redis_connection: redis.Redis, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = LocalStore(tmp_path / "file" / "store")
    member = Membership(connection=redis_connection, fleet="h3", store=store, pullers=1, engine_url="")

    with pytest.raises(NodeStartError, match="store"):
        member.check_store()


def test_a_node_is_named_by_its_host_and_its_engines_port() -> None:
    first, second = node_of(Settings(port=8033)), node_of(Settings(port=8034))

    assert first.endswith("-8033")
    assert first != second
    assert node_of(Settings(port=8033, node="spark-1")) == "spark-1"
    assert node_of(Settings(engine_url="http://127.0.0.1:9000")).endswith("-9000")
    with pytest.raises(SettingsError, match="no node name"):
        Settings(node="spark 1")


@pytest.mark.parametrize(
    ("settings", "command", "remark"),
    [
        (Settings(), "h3 submit 'a red fox in snow'", ""),
        (
            Settings(redis_url="redis://127.0.0.1:7001/0", storage_url="/films/my store", fleet="night"),
            "h3 submit 'a red fox in snow' --redis redis://127.0.0.1:7001/0 --storage '/films/my store'"
            " --fleet night",
            "",
        ),
        (
            Settings(redis_url="rediss://:hunter2@example.test/0"),
            "h3 submit 'a red fox in snow'",
            " (with H3_REDIS_URL set as it is for this node)",
        ),
    ],
)
def test_the_hint_for_submitting_names_what_a_client_would_not_guess(
    settings: Settings, command: str, remark: str
) -> None:
    small = command.replace("snow'", "snow' --width 192 --height 128 --frames 39 --steps 4")

    assert submit_command(settings, is_random=False) == (command, remark)
    assert submit_command(settings, is_random=True) == (small, remark)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"embedded": True, "settings": Settings(redis_named=True)}, "leave out either"),
        ({"redis_port": 7000, "settings": Settings()}, "--embedded"),
        ({"embedded": True, "redis_port": 70_000, "settings": Settings()}, "65535"),
    ],
)
def test_an_embedded_queue_beside_a_named_one_is_refused(plan: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        check_plan(NodePlan(engine_command=[], **plan))  # type: ignore[arg-type]  # a table of keywords


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "redis").mkdir()
    return tmp_path / "redis"


def test_an_embedded_queue_takes_the_usual_port_only_when_it_is_free(
    folder: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_redis, "USUAL_PORT", free_port)
    first, first_url = start_redis(folder, port=None, environment=dict(os.environ))
    try:
        second, second_url = start_redis(folder, port=None, environment=dict(os.environ))
        second.kill()
        with pytest.raises(NodeStartError, match="--redis-port"):
            start_redis(folder, port=free_port, environment=dict(os.environ))
        third, third_url = start_redis(folder, port=0, environment=dict(os.environ))
        third.kill()
    finally:
        first.kill()

    assert first_url == f"redis://127.0.0.1:{free_port}/0"
    assert len({first_url, second_url, third_url}) == 3


def test_a_node_does_not_begin_the_fleets_store_anew_where_it_is_away(
    redis_connection: redis.Redis, tmp_path: Path
) -> None:
    place = tmp_path / "store"
    agree_on_store(redis_connection, StoreAgreement(node="a", store_id="1" * 32, url=place.as_uri()))
    member = Membership(
        connection=redis_connection, fleet="h3", store=LocalStore(place), pullers=1, engine_url=""
    )

    with pytest.raises(StorageUnavailableError, match="the store 11111111 is not there: mount it again"):
        member.check_store()

    assert not place.exists()
