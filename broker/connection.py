"""Connect to Redis, once and checked, with errors that say what to try.

A server that does not answer within seconds is reported, never waited for in silence: a connection that
breaks is tried again, an answer that does not come is not, since the caller's time is used up by then.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import redis
from redis.backoff import ExponentialWithJitterBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from broker.address import show_address
from broker.errors import QueueAddressError, QueueUnavailableError
from broker.refusals import QueueRedis, QueueRefusesError

ANSWER_SECONDS: Final = 8.0
"""How long one command waits for its answer."""
_CONNECT_SECONDS: Final = 2.0
_HURRIED_SECONDS: Final = 1.0
_BACKOFF: Final = ExponentialWithJitterBackoff(base=0.05, cap=0.5)
_START_ONE: Final = "start one, or run `h3-worker run --embedded`, or set H3_REDIS_URL / --redis"
_CHECK_LOGIN: Final = "check user and password in H3_REDIS_URL / --redis"
_CHECK_ADDRESS: Final = "check H3_REDIS_URL / --redis"
_WAIT: Final = "wait until it is ready, or set H3_REDIS_URL / --redis to another one"


def connect(url: str, *, answer_seconds: float = ANSWER_SECONDS) -> redis.Redis:
    """Return a client whose server has answered PING.

    Raises QueueAddressError for an address that cannot be one, QueueUnavailableError when nothing usable
    answers.
    """
    show_address(url)
    connection = QueueRedis.from_url(
        url,
        socket_timeout=answer_seconds,
        socket_connect_timeout=_CONNECT_SECONDS,
        health_check_interval=15,
        retry=Retry(_BACKOFF, 3, supported_errors=(redis.exceptions.ConnectionError,)),
        # Neither redis-py's name and version nor the moves of a hosted cluster: with them a connection, of
        # which every job process opens one, costs four times as much.
        driver_info=None,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )
    with queue_errors(connection):
        try:
            connection.ping()
        except redis.exceptions.ResponseError as error:
            if "DB index" not in str(error):
                raise
            raise QueueAddressError(
                f"the Redis at {_address(connection)} has no database of this number; {_CHECK_ADDRESS}"
            ) from None
    return connection


def hurry(connection: redis.Redis) -> None:
    """Have what is still asked of Redis answered within a second or given up: for the end of a process."""
    pool = connection.connection_pool
    pool.connection_kwargs |= {
        "socket_timeout": _HURRIED_SECONDS,
        "socket_connect_timeout": _HURRIED_SECONDS,
        "retry": None,
    }
    pool.disconnect(inuse_connections=False)
    pool.reset()  # a connection keeps the times that it was made with


@contextmanager
def queue_errors(connection: redis.Redis) -> Iterator[None]:
    """Turn what redis-py raises inside the block into QueueUnavailableError."""
    address = _address(connection)
    try:
        yield
    except redis.exceptions.AuthenticationError as error:
        raise _login_refused(address, error) from None
    except redis.exceptions.BusyLoadingError as error:
        raise QueueUnavailableError(address, f"{error}", remedy=_WAIT) from None
    except QueueRefusesError as error:
        raise QueueUnavailableError(address, error.reason, remedy=error.remedy, answers=True) from None
    except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError) as error:
        raise QueueUnavailableError(address, _reason(error), remedy=_START_ONE) from None
    except redis.exceptions.InvalidResponse:
        reason = "what answers there is no Redis"
        raise QueueUnavailableError(address, reason, remedy=_CHECK_ADDRESS) from None
    except redis.exceptions.ResponseError as error:
        if not str(error).startswith(("NOAUTH", "WRONGPASS", "NOPERM", "invalid username")):
            raise
        raise _login_refused(address, error) from None


def _login_refused(address: str, error: Exception) -> QueueUnavailableError:
    """Say which it is: a login is missing, is not known, or is not enough for what was asked."""
    if str(error).startswith(("NOAUTH", "HELLO must", "Authentication required")):
        reason = "it wants a password"
    elif str(error).startswith(("NOPERM", "this user has no permissions")):
        reason = f"{error}"
    else:
        reason = "it does not know this user and password"
    return QueueUnavailableError(address, reason, remedy=_CHECK_LOGIN, answers=True)


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
