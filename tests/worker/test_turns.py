"""A store that lets everyone win: with turns, one creates the manifest and the others see it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from storage.local import LocalStore
from worker.turns import TurnTakingStore, decides_by_itself, open_fleet_store


class CarelessStore(LocalStore):
    """As an object store that ignores `If-None-Match`: the last writer wins, and everyone is told yes."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.put_bytes(key, data)
        return True

    def conditional_writes(self) -> bool:
        return False


def winners(create: Callable[[bytes], bool]) -> list[bytes]:
    start = threading.Barrier(6)

    def race(number: int) -> bytes | None:
        start.wait(10)
        data = b"%d" % number
        return data if create(data) else None

    with ThreadPoolExecutor(6) as threads:
        return [data for data in threads.map(race, range(6)) if data is not None]


def test_of_many_that_create_one_key_by_turns_one_wins(redis_connection: redis.Redis, tmp_path: Path) -> None:
    store = TurnTakingStore(CarelessStore(tmp_path), redis_connection, fleet="h3")

    (winner,) = winners(lambda data: store.put_if_absent("runs/a/1/manifest.json", data))

    assert store.read_bytes("runs/a/1/manifest.json", limit_bytes=100) == winner
    assert not redis_connection.keys("h3:turn:*")


def test_a_folder_decides_by_itself_and_is_used_as_it_is(
    redis_connection: redis.Redis, tmp_path: Path
) -> None:
    assert decides_by_itself(str(tmp_path))

    store = open_fleet_store(str(tmp_path), redis_connection, fleet="h3", takes_turns=False)
    by_turns = open_fleet_store(str(tmp_path), redis_connection, fleet="h3", takes_turns=True)

    assert isinstance(store, LocalStore)
    assert isinstance(by_turns, TurnTakingStore)


def test_one_who_takes_turns_is_the_store_in_everything_else(
    redis_connection: redis.Redis, tmp_path: Path
) -> None:
    plain = CarelessStore(tmp_path / "store")
    store = TurnTakingStore(plain, redis_connection, fleet="h3")
    (tmp_path / "film").write_bytes(b"film")

    store.put_file("a/film", tmp_path / "film")
    store.put_bytes("a/text", b"text")

    assert (store.url, store.conditional_writes()) == (plain.url, False)
    assert list(store.list("a/")) == ["a/film", "a/text"]
    assert store.locate("a/film") == plain.locate("a/film")
    assert store.remove_abandoned(older_than_seconds=0) == 0
    with store.open("a/film") as stream:
        assert stream.read() == b"film"


def test_without_redis_nobody_gets_a_turn(tmp_path: Path, free_port: int) -> None:
    nowhere = redis.Redis(port=free_port, retry=None)
    store = TurnTakingStore(CarelessStore(tmp_path), nowhere, fleet="h3")

    with pytest.raises(redis.exceptions.ConnectionError):
        store.put_if_absent("a", b"1")

    assert store.read_bytes("a", limit_bytes=10) is None
