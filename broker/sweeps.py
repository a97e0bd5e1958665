"""Sweeps whose summary is not written yet: which to look at now, which later, which never again."""

import redis

from broker import keys


def watch_sweep(connection: redis.Redis, sweep_id: str, *, fleet: str) -> None:
    """Have a sweep looked at of which nothing was queued; submitting a run does as much."""
    now, _ = connection.time()
    connection.zadd(keys.sweeps_key(fleet), {sweep_id: now}, nx=True)


def sweeps_to_look_at(connection: redis.Redis, *, fleet: str, most: int) -> list[str]:
    """Return ids of sweeps whose time to be looked at has come, the longest waiting first."""
    seconds, _ = connection.time()
    found = connection.zrangebyscore(keys.sweeps_key(fleet), "-inf", seconds, start=0, num=most)
    return [sweep.decode("utf-8", "surrogateescape") for sweep in found if isinstance(sweep, bytes)]


def look_again(connection: redis.Redis, sweep_id: str, *, fleet: str, seconds: float) -> None:
    """Have the sweep looked at again after a while; nothing happens where it is not listed any more."""
    now, _ = connection.time()
    connection.zadd(keys.sweeps_key(fleet), {sweep_id: now + seconds}, xx=True)


def forget_sweep(connection: redis.Redis, sweep_id: str, *, fleet: str) -> None:
    connection.zrem(keys.sweeps_key(fleet), sweep_id.encode("utf-8", "surrogateescape"))
