"""A whole node around an engine that only sleeps: redis-server, service and pullers, for timing the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from queue_schemas.programs import module_command
from worker.children import Child, end_all
from worker.embedded_redis import free_port, start_redis
from worker.engine_client import EngineAddress, EngineClient
from worker.settings import Settings, child_environment

READY_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedNode:
    """Where it listens and what it leaves."""

    redis_url: str
    store: Path
    turns: Path
    """One JSON line per job: when it had the GPU, by the machine's monotonic clock."""
    pids: tuple[int, ...]
    """Of redis-server, engine and pullers; a puller's CPU time includes its ended job processes."""


@contextmanager
def timed_node(
    folder: Path, *, pullers: int, prepare_seconds: float, step_seconds: float
) -> Iterator[TimedNode]:
    """Yield a ready node in `folder`; it has ended when the block is left."""
    port, turns = free_port(), folder / "turns.jsonl"
    settings = Settings(
        port=port,
        engine_url=f"http://127.0.0.1:{port}",
        storage_url=str(folder / "store"),
        output_dir=folder / "engine",
    )
    redis, redis_url = start_redis(folder, port=0, environment=child_environment(settings))
    environment = child_environment(settings) | {"H3_REDIS_URL": redis_url}
    commands = {"engine": module_command("benchmarks.timed_engine", str(step_seconds), str(turns))}
    puller = module_command("benchmarks.timed_puller", str(prepare_seconds))
    commands |= {f"puller {number}": puller for number in range(pullers)}
    others = [Child(name, command, environment=environment) for name, command in commands.items()]
    try:
        for child in others:
            child.start()
        with EngineClient(EngineAddress(f"http://127.0.0.1:{port}")) as client:
            client.wait_ready(seconds=READY_SECONDS)
        pids = tuple(child.pid for child in (redis, *others) if child.pid is not None)
        yield TimedNode(redis_url=redis_url, store=folder / "store", turns=turns, pids=pids)
    finally:
        end_all(others, seconds=5.0)
        end_all([redis], seconds=5.0)  # last: the others still speak to it
