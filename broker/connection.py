"""Connect to Redis, once and checked, with errors that say what to try.

Time-outs are short: a server that does not answer within seconds is reported, never waited for in silence.
Addresses in messages hold no password.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.retry import Retry

from broker.errors import QueueAddressError, QueueUnavailableError

SCHEMES: Final = ("redis", "rediss", "unix")
_START_ONE: Final = "start one, or run `h3-worker run --embedded`, or set H3_REDIS_URL / --redis"
_CHECK_LOGIN: Final = "check user and password in H3_REDIS_URL / --redis"
_WRITE: Final = "write redis://host:port/0, rediss://host:port/0 or unix:///path/to/socket"
_WAIT: Final = "wait until it is ready, or set H3_REDIS_URL / --redis to another one"


def connect(url: str) -> redis.Redis:
    """Return a client whose server has answered PING.

    Raises QueueAddressError for an address that cannot be one, QueueUnavailableError when nothing usable
    answers.
    """
    show_address(url)
    try:
        connection = redis.Redis.from_url(
            url,
            socket_timeout=5,
            socket_connect_timeout=2,
            health_check_interval=15,
            retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), 3),
        )
    except ValueError as error:
        raise QueueAddressError(f"the Redis address cannot be read ({error}); {_WRITE}") from None
    with queue_errors(connection):
        connection.ping()
    return connection


def show_address(url: str) -> str:
    """Return `host:port` or the socket's path, for messages. Raises QueueAddressError for another scheme."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise QueueAddressError(f"the Redis address cannot be read ({error}); {_WRITE}") from None
    if parts.scheme not in SCHEMES:
        scheme = f"scheme {parts.scheme!r}" if "://" in url else "no scheme"
        raise QueueAddressError(f"the Redis address has {scheme}; {_WRITE}")
    if parts.scheme == "unix":
        if not parts.path:
            raise QueueAddressError(f"the Redis address names no socket; {_WRITE}")
        return parts.path
    return f"{host or 'localhost'}:{port or 6379}"


def mask_password(url: str) -> str:
    """Return an address fit for output: a password, wherever it stands in the URL, is replaced by `***`."""
    parts = urlsplit(url)
    login, at, place = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    netloc = f"{user}{':***' if colon else ''}{at}{place}"
    query = "&".join(
        "password=***" if part.startswith("password=") else part for part in parts.query.split("&")
    )
    # urlunsplit would write unix:///path as unix:/path, which redis-py refuses.
    return f"{parts.scheme}://{netloc}{parts.path}{'?' + query if query else ''}"


@contextmanager
def queue_errors(connection: redis.Redis) -> Iterator[None]:
    """Turn what redis-py raises inside the block into QueueUnavailableError."""
    try:
        yield
    except redis.exceptions.AuthenticationError as error:
        raise QueueUnavailableError(_address(connection), f"{error}", remedy=_CHECK_LOGIN) from None
    except redis.exceptions.BusyLoadingError as error:
        raise QueueUnavailableError(_address(connection), f"{error}", remedy=_WAIT) from None
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
        raise QueueUnavailableError(_address(connection), _reason(error), remedy=_START_ONE) from None
    except redis.exceptions.ResponseError as error:
        if not str(error).startswith(("NOAUTH", "WRONGPASS", "NOPERM", "invalid username")):
            raise
        raise QueueUnavailableError(_address(connection), f"{error}", remedy=_CHECK_LOGIN) from None


def _address(connection: redis.Redis) -> str:
    settings = connection.connection_pool.connection_kwargs
    return settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"


def _reason(error: Exception) -> str:
    """Return the operating system's words where there are any; redis-py's repeat the address."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
        cause = cause.__cause__ or cause.__context__
    return "no answer in time" if isinstance(error, redis.exceptions.TimeoutError) else str(error)
