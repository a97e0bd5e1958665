"""Connecting: what is refused, and how it is told."""

import pytest

from broker.connection import connect, mask_password
from broker.errors import QueueAddressError, QueueUnavailableError


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


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:6379", "127.0.0.1:6379", "", "redis://host:99999/0", "unix://", "redis:://x"]
)
def test_an_address_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(QueueAddressError, match="redis://host:port/0"):
        connect(url)


def test_an_address_with_a_password_and_a_bad_scheme_does_not_show_it() -> None:
    with pytest.raises(QueueAddressError) as caught:
        connect("http://fox:hunter2@example.test:6379")

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("rediss://fox:hunter2@example.test:6380/1", "rediss://fox:***@example.test:6380/1"),
        ("redis://:hunter2@example.test", "redis://:***@example.test"),
        ("unix:///run/redis.sock?db=1&password=hunter2", "unix:///run/redis.sock?db=1&password=***"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert mask_password(url) == shown
