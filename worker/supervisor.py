"""One node: starts redis-server (when asked), the engine and the pullers, watches them, ends them in order.

The engine is loaded before the first puller starts, so no job is claimed that nobody could make. The end:
pullers first (each finishes its job, within a bound), then the engine, then Redis, so nobody loses what it
still needs. When this process itself is killed the kernel ends all of them (`lifeline.py`).
"""

import logging
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import redis

from broker import nodes
from broker.connection import connect, mask_password
from broker.errors import QueueUnavailableError
from queue_schemas.nodes import NodeCard
from queue_schemas.results import EngineReady
from worker.attempt import utc_now
from worker.children import Child, end_all
from worker.embedded_redis import check_port, free_port, start_redis
from worker.engine_client import EngineAddress, EngineClient
from worker.errors import EngineLostError, NodeStartError, SettingsError
from worker.machine import node_name
from worker.settings import Settings, child_environment

log = logging.getLogger(__name__)

CARD_TTL_SECONDS: Final = 30
CARD_EVERY_SECONDS: Final = 10.0
_TICK_SECONDS: Final = 0.1
_ENGINE_END_SECONDS: Final = 20.0
_HURRIED_END_SECONDS: Final = 2.0
_REDIS_END_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What to run."""

    settings: Settings
    engine_command: Sequence[str]
    """Command line of the engine; it finds host, port and the rest in its environment."""
    pullers: int = 2
    embedded: bool = False
    drain_seconds: float = 60.0
    """How long running jobs may take to end after the first signal; a second signal ends the wait."""


class Supervisor:
    """Owns the children of one node."""

    def __init__(
        self, plan: NodePlan, *, on_ready: Callable[[dict[str, Any]], None], tell: Callable[[str], None]
    ) -> None:
        self._plan, self._on_ready, self._tell = plan, on_ready, tell
        self._settings = plan.settings
        self._signals = 0
        self._hurried = False
        """A second signal came: whatever still runs is given up."""
        self._redis: Child | None = None
        self._engine: Child | None = None
        self._pullers: list[Child] = []
        self._started_at = utc_now()

    def run(self) -> None:
        """Run the node until a signal. Raises NodeStartError, and what connecting to Redis raises."""
        with tempfile.TemporaryDirectory(prefix="h3-node-") as folder, self._signal_handlers():
            try:
                connection = self._start_redis(Path(folder))
                ready = self._start_engine()
                if ready is not None:
                    self._watch(connection, ready)
            finally:
                self._end()

    @contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        def note(*_: object) -> None:
            self._signals += 1

        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start_redis(self, folder: Path) -> redis.Redis:
        if self._plan.embedded:
            environment = child_environment(self._settings)
            self._redis, url = start_redis(folder, environment=environment)
            self._settings = replace(self._settings, redis_url=url)
        return connect(self._settings.redis_url)

    def _start_engine(self) -> EngineReady | None:
        """Return what the engine says once it is loaded; None when a signal came first."""
        if self._settings.engine_url is None:
            port = self._settings.port or free_port()
            check_port(port)  # else a stranger on it would answer for an engine that cannot listen
            self._settings = replace(self._settings, port=port)
            environment = child_environment(self._settings)
            self._engine = Child("engine", self._plan.engine_command, environment=environment)
            self._engine.start()
            self._settings = replace(self._settings, engine_url=f"http://127.0.0.1:{port}")
        return self._wait_for_engine()

    def _wait_for_engine(self) -> EngineReady | None:
        told = ""
        with self._engine_client() as engine:
            while not self._signals:
                self._check_engine_lives()
                try:
                    ready = engine.ready()
                except EngineLostError as error:
                    # A connection refused only says that the process has not come to listening yet.
                    message = str(error).partition("is not ready: ")[2]
                    if message and message != told:
                        self._tell(f"engine: {message}")
                    told = message or told
                    time.sleep(_TICK_SECONDS)
                    continue
                # Whatever else listens on the port would answer in the engine's place while that one fails.
                self._check_engine_lives()
                return ready
        return None

    def _check_engine_lives(self) -> None:
        code = None if self._engine is None else self._engine.exit_code
        if code is not None:
            message = f"the engine ended with exit code {code} before it was ready; its message is above"
            raise NodeStartError(message, **({"exit_code": code} if code > 0 else {}))

    def _engine_client(self) -> EngineClient:
        assert self._settings.engine_url is not None, "_start_engine sets it"
        return EngineClient(EngineAddress(self._settings.engine_url, self._settings.api_token))

    def _watch(self, connection: redis.Redis, ready: EngineReady) -> None:
        """Start the pullers and keep everything running until a signal."""
        environment = child_environment(self._settings)
        command = [sys.executable, "-m", "worker.cli", "pull"]
        for number in range(1, self._plan.pullers + 1):
            self._pullers.append(Child(f"puller {number}", command, environment=environment))
            self._pullers[-1].start()
        card = self._card(ready)
        self._announce(connection, card)
        self._on_ready(self._ready_line(ready))
        next_card = time.monotonic() + CARD_EVERY_SECONDS
        while not self._signals:
            self._check_redis_lives()
            for child in self._restartable():
                child.keep_running()
            if time.monotonic() >= next_card:
                if self._engine is None or self._engine.exit_code is None:
                    self._announce(connection, card)
                next_card = time.monotonic() + CARD_EVERY_SECONDS
            time.sleep(_TICK_SECONDS)
        self._withdraw(connection, card)

    def _restartable(self) -> list[Child]:
        return [*([self._engine] if self._engine else []), *self._pullers]

    def _check_redis_lives(self) -> None:
        if self._redis is not None and self._redis.exit_code is not None:
            raise NodeStartError("the embedded redis-server ended, and the queue with it; start again")

    def _card(self, ready: EngineReady) -> NodeCard:
        return NodeCard(
            node=node_name(),
            checkpoint=ready.checkpoint.name,
            weights=ready.checkpoint.weights,
            device=ready.environment.device,
            attention_backends=ready.attention_backends,
            started_at=self._started_at,
        )

    def _announce(self, connection: redis.Redis, card: NodeCard) -> None:
        try:
            nodes.announce(connection, card, ttl_seconds=CARD_TTL_SECONDS, fleet=self._settings.fleet)
        except QueueUnavailableError as error:
            log.warning("node card not renewed: %s", error)

    def _withdraw(self, connection: redis.Redis, card: NodeCard) -> None:
        try:
            nodes.withdraw(connection, card.node, fleet=self._settings.fleet)
        except QueueUnavailableError as error:
            log.warning("node card not withdrawn: %s", error)

    def _ready_line(self, ready: EngineReady) -> dict[str, Any]:
        return {
            "event": "ready",
            "redis_url": mask_password(self._settings.redis_url),
            "engine_url": self._settings.engine_url,
            "storage_url": self._settings.storage_url,
            "fleet": self._settings.fleet,
            "node": node_name(),
            "checkpoint": ready.checkpoint.name,
        }

    def _end(self) -> None:
        """Stop taking, finish, unload, stop Redis; also after a failure at any point."""
        self._end_pullers()
        seconds = _HURRIED_END_SECONDS if self._hurried else _ENGINE_END_SECONDS
        end_all([self._engine] if self._engine else [], seconds=seconds)
        end_all([self._redis] if self._redis else [], seconds=_REDIS_END_SECONDS)

    def _end_pullers(self) -> None:
        """Let running jobs finish; the drain time and a second signal end the wait."""
        signals = self._signals
        for child in self._pullers:
            child.signal_end()
        deadline = time.monotonic() + self._plan.drain_seconds
        told = False
        while any(child.exit_code is None for child in self._pullers):
            self._hurried = self._signals > signals
            if self._hurried or time.monotonic() >= deadline:
                break
            if not told and time.monotonic() >= deadline - self._plan.drain_seconds + 1.0:
                self._tell("waiting for running jobs to end; interrupt again to stop now")
                told = True
            time.sleep(0.02)
        end_all(self._pullers, seconds=0.0)


def check_plan(plan: NodePlan) -> None:
    """Refuse a plan that cannot run, before anything is started. Raises SettingsError."""
    if not 1 <= plan.pullers <= 16:
        raise SettingsError(f"{plan.pullers} pullers; a node has 1 to 16")
    if plan.drain_seconds < 0:
        raise SettingsError(f"a drain of {plan.drain_seconds} seconds; give 0 or more")
