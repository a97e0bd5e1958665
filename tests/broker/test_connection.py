"""Connecting: what is refused, and how it is told."""

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from own_redis import OwnRedis

from broker.connection import ANSWER_SECONDS, connect, hurry, queue_errors
from broker.errors import QueueAddressError, QueueUnavailableError
from broker.patience import AWAY, patiently


def test_a_redis_that_answers_is_connected(redis_url: str) -> None:
    with connect(redis_url) as connection:
        assert connection.ping()


def test_an_absent_redis_is_told_with_address_and_remedy(free_port: int) -> None:
    with pytest.raises(QueueUnavailableError) as caught:
        connect(f"redis://127.0.0.1:{free_port}/0")

    assert str(caught.value) == (
        f"no Redis answers at 127.0.0.1:{free_port} (connection refused); "
        "start one, or run `h3-worker run --embedded`, or set H3_REDIS_URL / --redis"
    )


def test_a_password_never_shows_in_a_message(free_port: int) -> None:
    with pytest.raises(QueueUnavailableError) as caught:
        connect(f"redis://fox:hunter2@127.0.0.1:{free_port}/0")

    assert "hunter2" not in str(caught.value)


def test_a_login_that_the_server_does_not_know_is_told_as_such(redis_url: str) -> None:
    with pytest.raises(QueueUnavailableError, match="check user and password") as caught:
        connect(redis_url.replace("redis://", "redis://fox:hunter2@"))

    assert "hunter2" not in str(caught.value)


def test_a_server_that_wants_a_password_is_told_as_such(own_redis: OwnRedis) -> None:
    with redis.Redis.from_url(own_redis.url) as server:
        server.config_set("requirepass", "hunter2")

    with pytest.raises(
        QueueUnavailableError, match=r"the Redis at \S+ .* \(it wants a password\); check user"
    ):
        connect(own_redis.url)


def test_a_database_that_the_server_does_not_have_is_refused_as_an_address(redis_url: str) -> None:
    with pytest.raises(QueueAddressError, match=r"127\.0\.0\.1:\d+ has no database of this number"):
        connect(redis_url.removesuffix("/0") + "/99")


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Address of a server whose kernel accepts connections, and which never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_never_answers_is_told_after_one_wait(silent_server: str) -> None:
    began = time.monotonic()

    with pytest.raises(QueueUnavailableError, match=f"at {silent_server} .no answer in time."):
        connect(f"redis://{silent_server}/0", answer_seconds=0.3)

    assert 0.25 < time.monotonic() - began < 1.0
    assert ANSWER_SECONDS + 2 < 12  # what a command waits at most: to connect, and for one answer


def test_a_command_to_a_server_that_froze_is_told_after_one_wait(own_redis: OwnRedis) -> None:
    connection = connect(own_redis.url, answer_seconds=0.3)
    own_redis.freeze()
    began = time.monotonic()

    with pytest.raises(QueueUnavailableError, match="no answer in time"), queue_errors(connection):
        connection.get("fox")

    assert time.monotonic() - began < 1.0
    own_redis.thaw()
    connection.set("fox", "red")
    assert connection.get("fox") == b"red"  # not the late answer to the first question


def test_a_process_that_ends_asks_a_frozen_server_for_a_second_only(own_redis: OwnRedis) -> None:
    connection = connect(own_redis.url)
    own_redis.freeze()
    began = time.monotonic()

    hurry(connection)
    with pytest.raises(QueueUnavailableError, match="no answer in time"), queue_errors(connection):
        connection.get("fox")

    assert time.monotonic() - began < 2.0


def test_a_web_server_in_the_place_of_redis_is_told_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer_as_a_web_server, args=(listener,))
        server.start()
        with pytest.raises(QueueUnavailableError, match=r"what answers there is no Redis\)"):
            connect(f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        server.join()


def answer_as_a_web_server(listener: socket.socket) -> None:
    caller, _ = listener.accept()
    with caller:
        caller.recv(4096)
        caller.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    ("refuse", "says"),
    [
        (OwnRedis.refuse_as_full, "OOM: its memory is full.; raise its maxmemory"),
        (OwnRedis.refuse_as_replica, "READONLY: it is a read-only replica.; name its master"),
        (OwnRedis.refuse_for_its_disk, "MISCONF: it cannot write to its disk.; free some space"),
    ],
)
def test_a_server_that_refuses_to_write_is_one_that_is_away_and_says_why(
    own_redis: OwnRedis, refuse: Callable[[OwnRedis], None], says: str
) -> None:
    connection = connect(own_redis.url)
    refuse(own_redis)

    def one() -> None:
        connection.set("fox", "red")

    def script() -> None:
        connection.register_script("return redis.call('SET', KEYS[1], ARGV[1])")(keys=["fox"], args=["red"])

    def batch() -> None:
        with connection.pipeline() as pipeline:
            pipeline.set("fox", "red")
            pipeline.execute()

    for write in (one, script, batch):
        told = pytest.raises(QueueUnavailableError, match=f"127.0.0.1:.* takes no commands .{says}")
        with told, queue_errors(connection):
            write()
        with pytest.raises(AWAY):
            write()


def test_what_waits_for_redis_goes_on_when_it_takes_writes_again(
    own_redis: OwnRedis, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(own_redis.url)
    own_redis.refuse_as_full()
    relief = threading.Timer(0.3, own_redis.accept)
    relief.start()

    patiently(lambda: connection.set("fox", "red"), seconds=10, what="entry ab-1")

    relief.join()
    assert connection.get("fox") == b"red"
    assert (
        "entry ab-1: waiting for Redis: Redis takes no commands now (OOM: its memory is full)" in caplog.text
    )
