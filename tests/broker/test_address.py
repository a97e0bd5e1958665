"""A Redis address: what is refused before anything is tried, and what is ever shown of it."""

import pytest

from broker.address import mask_secrets, show_address
from broker.errors import QueueAddressError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "127.0.0.1:6379"),
        ("redis://example.test", "example.test:6379"),
        ("redis:///3", "localhost:6379"),
        ("redis://fox:h%2Fu%23n%3Ft@example.test:6380/1", "example.test:6380"),
        ("rediss://example.test/0?ssl_cert_reqs=none&ssl_ca_certs=/etc/ca.pem", "example.test:6379"),
        ("unix:///run/redis.sock?db=1&password=hunter2", "/run/redis.sock"),
    ],
)
def test_an_address_is_shown_as_host_and_port_or_as_its_socket(url: str, shown: str) -> None:
    assert show_address(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:6379",
        "127.0.0.1:6379",
        "",
        "redis://host:99999/0",
        "unix://",
        "redis:://x",
        "redis://[x",
    ],
)
def test_an_address_that_cannot_be_one_is_refused_with_the_form(url: str) -> None:
    with pytest.raises(QueueAddressError, match="redis://host:port/0"):
        show_address(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://host/abc", "number of a database"),
        ("redis://host/0/1", "number of a database"),
        ("redis://host/-1", "number of a database"),
        ("redis://host?db=abc", "option 'db'"),
        ("redis://host/0?foo=bar", "no option 'foo'; there are db, username, password, client_name"),
        ("redis://host/0?retry=3", "no option 'retry'"),
        ("redis://host/0?ssl_cert_reqs=none", r"a redis:// address has no option 'ssl_cert_reqs'"),
        (
            "rediss://host/0?ssl_cert_reqs=bad",
            "ssl_cert_reqs .* is none, optional, required",
        ),
        ("rediss://host/0?ssl_ca_certs=", "option 'ssl_ca_certs' of the Redis address has no value"),
        ("redis://host/0#1", "goes on where it should end"),
    ],
)
def test_a_part_that_redis_py_would_ignore_or_fail_at_later_is_refused(url: str, says: str) -> None:
    with pytest.raises(QueueAddressError, match=says):
        show_address(url)


SECRETS = [
    "http://fox:hunter2@example.test:6379",
    "redis://fox:hunter2@example.test:port/0",
    "redis://fox:hunter2/x@example.test/0",
    "redis://fox:1/hunter2@example.test/0",
    "redis://fox:1#hunter2@example.test/0",
    "redis://fox:1?hunter2@example.test/0",
    "redis://fox:1?hunter2=hunter2@example.test/0",
    "redis://fox:hunter2\u2100@example.test/0",
    "redis://fox:[hunter2@example.test/0",
    "redis://example.test/0?password=hunter2&db=x",
    "redis://example.test/0?token=hunter2",
    "fox:hunter2@redis://example.test",
    "https://hunter2@example.test/engine?api_key=hunter2",
    "https://fox:hunter2@example.test?hunter2",
]


@pytest.mark.parametrize("url", SECRETS)
def test_a_secret_shows_neither_in_a_refusal_nor_in_what_is_printed(url: str) -> None:
    with pytest.raises(QueueAddressError) as caught:
        show_address(url)

    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in mask_secrets(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("rediss://fox:hunter2@example.test:6380/1", "rediss://fox:***@example.test:6380/1"),
        ("redis://:hunter2@example.test", "redis://:***@example.test"),
        ("unix:///run/redis.sock?db=1&password=hunter2", "unix:///run/redis.sock?db=1&password=***"),
        ("s3://films/h3?region=auto&secret=hunter2", "s3://films/h3?region=auto&secret=***"),
        ("redis://host?secret=hunter2", "redis://host?secret=***"),
        ("https://hunter2@example.test/", "https://***@example.test/"),
        ("films@home/store", "films@home/store"),
    ],
)
def test_an_address_of_any_kind_is_printed_without_its_secrets(url: str, shown: str) -> None:
    assert mask_secrets(url, harmless=["region"]) == shown
