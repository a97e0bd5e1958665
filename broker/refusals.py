"""A Redis that answers, but takes no commands now: it is full, a replica, or cannot write to its disk.

Whoever waits for a Redis that is away waits for this one as well, so what redis-py tells as an error of the
command becomes a ConnectionError here, with the reason in words. It is not tried again at once.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import redis
from redis.client import Pipeline

_REFUSALS: Final[Mapping[str, tuple[str, str]]] = {
    "OOM": ("its memory is full", "raise its maxmemory, or remove what fills it"),
    "READONLY": ("it is a read-only replica", "name its master in H3_REDIS_URL / --redis"),
    "MISCONF": ("it cannot write to its disk", "free some space there, and see its log"),
    "NOREPLICAS": ("too few of its replicas are there", "start them"),
    "CLUSTERDOWN": ("its cluster or its master is down", "wait for that to come back"),
    "UNBLOCKED": ("it has become a replica", "name its master in H3_REDIS_URL / --redis"),
    "BUSY": ("it is busy with a script", "wait for that, or end it with SCRIPT KILL"),
}
"""The code of its answer, why, and what helps."""
_BY_TYPE: Final[Mapping[type[Exception], str]] = {
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
}
# At the start of an answer, or, up to Redis 6, behind the dash inside the answer of a script.
_CODE: Final = re.compile(rf"(?:^|-)({'|'.join(_REFUSALS)}) ")


def met_foreign_key(error: Exception) -> bool:
    """Say whether a command, or one of a script, met a key that holds something of another type."""
    return isinstance(error, redis.exceptions.ResponseError) and "WRONGTYPE" in str(error)


class QueueRefusesError(redis.exceptions.ConnectionError):
    """Raised when Redis answers that it cannot do now what it was asked; it may later."""

    def __init__(self, code: str) -> None:
        why, self.remedy = _REFUSALS[code]
        self.reason = f"{code}: {why}"
        super().__init__(f"Redis takes no commands now ({self.reason}); {self.remedy}")


class QueueRedis(redis.Redis):
    """A client to which a refusal is a Redis that is away."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        with _refusals(self):
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "QueuePipeline":
        return QueuePipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class QueuePipeline(Pipeline):
    """The same for a batch of commands."""

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        with _refusals(self):
            answers: list[Any] = super().execute(raise_on_error)
            return answers


@contextmanager
def _refusals(client: redis.Redis) -> Iterator[None]:
    try:
        yield
    except redis.exceptions.ResponseError as error:
        code = _code_of(error)
        if code is None:
            raise
        # The next call connects anew: behind the same name another server may be the master by then.
        client.connection_pool.disconnect(inuse_connections=False)
        raise QueueRefusesError(code) from None


def _code_of(error: redis.exceptions.ResponseError) -> str | None:
    # A pipeline puts its command, arguments and all, before the answer.
    found = _CODE.search(str(error).rpartition("caused error: ")[2])
    by_type = (code for kind, code in _BY_TYPE.items() if isinstance(error, kind))
    return found[1] if found else next(by_type, None)
