"""A store that lets everyone win: with turns, one creates the manifest and the others see it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from broker.agreements import StoreAgreement, agree_on_store
from broker.turns import turns
from storage.base import ArtifactStore
from storage.errors import StorageUnavailableError
from storage.turns import TurnTakingStore
from worker.turns import decides_by_itself, fleet_store_id, open_fleet_store


def winners(create: Callable[[bytes], bool]) -> list[bytes]:
    start = threading.Barrier(6)

    def race(number: int) -> bytes | None:
        start.wait(10)
        data = b"%d" % number
        return data if create(data) else None

    with ThreadPoolExecutor(6) as threads:
        return [data for data in threads.map(race, range(6)) if data is not None]


def test_of_many_that_create_one_key_by_turns_one_wins(
    redis_connection: redis.Redis, careless_store: ArtifactStore
) -> None:
    store = TurnTakingStore(careless_store, turns(redis_connection, fleet="h3"))

    (winner,) = winners(lambda data: store.put_if_absent("runs/a/1/manifest.json", data))

    assert store.read_bytes("runs/a/1/manifest.json", limit_bytes=100) == winner
    assert not redis_connection.keys("h3:turn:*")


def test_a_folder_decides_by_itself_and_is_used_as_it_is(
    redis_connection: redis.Redis, tmp_path: Path
) -> None:
    place, store_id = str(tmp_path), fleet_store_id(str(tmp_path), redis_connection, fleet="h3")
    assert decides_by_itself(place, store_id=store_id)

    store, by_turns = (
        open_fleet_store(place, redis_connection, fleet="h3", store_id=store_id, takes_turns=takes_turns)
        for takes_turns in (False, True)
    )

    assert not isinstance(store, TurnTakingStore)
    assert isinstance(by_turns, TurnTakingStore)


def test_the_store_that_a_fleet_has_fixed_is_not_begun_anew(
    redis_connection: redis.Redis, tmp_path: Path
) -> None:
    place = tmp_path / "store"
    agree_on_store(redis_connection, StoreAgreement(node="a", store_id="1" * 32, url=place.as_uri()))

    store_id = fleet_store_id(str(place), redis_connection, fleet="h3")

    assert store_id == "1" * 32
    with pytest.raises(StorageUnavailableError, match="has no store"):
        decides_by_itself(str(place), store_id=store_id)
    assert not place.exists()


def test_one_who_takes_turns_is_the_store_in_everything_else(
    redis_connection: redis.Redis, careless_store: ArtifactStore, tmp_path: Path
) -> None:
    plain = careless_store
    store = TurnTakingStore(plain, turns(redis_connection, fleet="h3"))
    (tmp_path / "film").write_bytes(b"film")

    store.put_file("a/film", tmp_path / "film")
    store.put_bytes("a/text", b"text")

    assert (store.url, store.conditional_writes()) == (plain.url, False)
    assert list(store.list("a/")) == ["a/film", "a/text"]
    assert store.locate("a/film") == plain.locate("a/film")
    assert store.remove_abandoned(older_than_seconds=0) == 0
    with store.open("a/film") as stream:
        assert stream.read() == b"film"


def test_a_turn_that_nobody_gives_up_is_an_error_of_the_store(
    redis_connection: redis.Redis, careless_store: ArtifactStore
) -> None:
    store = TurnTakingStore(careless_store, turns(redis_connection, fleet="h3", wait_seconds=0.01))

    with turns(redis_connection, fleet="h3")("a"), pytest.raises(StorageUnavailableError, match="turn"):
        store.put_if_absent("a", b"1")

    assert store.put_if_absent("a", b"1")


def test_a_turn_that_ran_out_meanwhile_does_not_hide_what_was_written(
    redis_connection: redis.Redis,
) -> None:
    with turns(redis_connection, fleet="h3")("a") as is_mine:
        redis_connection.delete("h3:turn:a")

    assert is_mine


def test_without_redis_nobody_gets_a_turn(careless_store: ArtifactStore, free_port: int) -> None:
    nowhere = redis.Redis(port=free_port, retry=None)
    store = TurnTakingStore(careless_store, turns(nowhere, fleet="h3"))

    with pytest.raises(redis.exceptions.ConnectionError):
        store.put_if_absent("a", b"1")

    assert store.read_bytes("a", limit_bytes=10) is None
