"""One node: starts redis-server (when asked), the engine and the pullers, watches them, ends them in order.

The engine is loaded before the first puller starts, so no job is claimed that nobody could make. The end:
pullers first (each finishes its job, within a bound), then the engine, then Redis, so nobody loses what it
still needs. When this process itself is killed the kernel ends all of them (`lifeline.py`).
"""

import logging
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import redis

from broker.address import mask_secrets
from broker.connection import connect
from queue_schemas.errors import EXIT_REFUSED
from queue_schemas.nodes import EngineState
from queue_schemas.programs import module_command
from queue_schemas.results import EngineReady
from storage.uri import open_store
from worker.children import Child, end_all
from worker.embedded_redis import check_port, free_port, start_redis
from worker.engine_client import EngineAddress, EngineClient
from worker.errors import EngineLostError, EngineNotReadyError, NodeStartError, SettingsError
from worker.membership import CARD_EVERY_SECONDS, Membership
from worker.output_root import check_output_root
from worker.settings import Settings, child_environment, node_of
from worker.submit_hint import shown_storage, submit_command

log = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.1
_ASK_SECONDS: Final = 2.0
"""How long engine and Redis may take to answer; nothing else is watched meanwhile, a signal neither."""
_ENGINE_END_SECONDS: Final = 20.0
_HURRIED_END_SECONDS: Final = 2.0
_QUICK_END_SECONDS: Final = 2.0
"""For janitor and redis-server, which have nothing to finish."""
_GIVE_BACK_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """What to run."""

    settings: Settings
    engine_command: Sequence[str]
    """Command line of the engine; it finds host, port and the rest in its environment."""
    pullers: int = 2
    embedded: bool = False
    redis_port: int | None = None
    """Of the embedded server: None takes the usual one if it is free, 0 any."""
    drain_seconds: float = 60.0
    """How long running jobs may take to end after the first signal; a second signal ends the wait."""
    quiet: bool = False
    """Whether pullers and janitor log errors only."""


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
        self._janitor: Child | None = None

    def run(self) -> None:
        """Run the node until a signal. Raises NodeStartError, and what connecting to Redis raises."""
        with tempfile.TemporaryDirectory(prefix="h3-node-") as folder, self._signal_handlers():
            try:
                connection = self._start_redis(Path(folder))
                self._choose_engine()
                membership = self._membership(connection)
                ready = self._start_engine()
                if ready is not None:
                    membership.join(ready, stopped=lambda: self._signals > 0)
                if ready is not None and not self._signals:
                    self._watch(membership, ready)
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
            self._redis, url = start_redis(folder, port=self._plan.redis_port, environment=environment)
            self._settings = replace(self._settings, redis_url=url)
            self._tell(f"queue: redis-server of this node on {url}")
        return connect(self._settings.redis_url, answer_seconds=_ASK_SECONDS)

    def _choose_engine(self) -> None:
        """Fix where the engine listens, and with it the node's name."""
        if self._settings.engine_url is None:
            port = self._settings.port or free_port()
            check_port(port)  # else a stranger on it would answer for an engine that cannot listen
            self._settings = replace(self._settings, port=port)
        self._settings = replace(self._settings, node=node_of(self._settings))

    def _membership(self, connection: redis.Redis) -> Membership:
        """Return this node's place in the fleet, whose store it shares. Raises NodeStartError."""
        membership = Membership(
            connection=connection,
            fleet=self._settings.fleet,
            store=open_store(self._settings.storage_url),
            pullers=self._plan.pullers,
            engine_url=self._settings.engine_url or f"http://127.0.0.1:{self._settings.port}",
        )
        membership.check_store()
        return membership

    def _start_engine(self) -> EngineReady | None:
        """Return what the engine says once it is loaded; None when a signal came first."""
        if self._settings.engine_url is None:
            check_output_root(self._settings.output_dir)
            environment = child_environment(self._settings)
            self._engine = Child("engine", self._plan.engine_command, environment=environment)
            self._engine.start()
            self._settings = replace(self._settings, engine_url=f"http://127.0.0.1:{self._settings.port}")
        ready = self._wait_for_engine()
        if ready is not None:
            self._adopt_name(ready.environment.node)
            self._check_shares_films(ready)
        return ready

    def _adopt_name(self, name: str) -> None:
        """Go by the name that the engine writes into its records. Raises NodeStartError."""
        chosen = self._plan.settings.node
        if chosen is not None and chosen != name:
            raise NodeStartError(
                f"the engine at {self._settings.engine_url} writes its records as node {name!r}, not"
                f" {chosen!r}; leave --node out, or start that engine with --node {chosen}",
                exit_code=EXIT_REFUSED,
            )
        self._settings = replace(self._settings, node=name)

    def _check_shares_films(self, ready: EngineReady) -> None:
        """Refuse an engine whose films this node cannot take. Raises NodeStartError, OutputRootError."""
        root = Path(ready.output_root)
        if not root.is_dir():
            raise NodeStartError(
                f"the engine at {self._settings.engine_url} makes its films in {root}, which is no folder on"
                " this machine; run the node where its engine runs",
                exit_code=EXIT_REFUSED,
            )
        check_output_root(root)

    def _wait_for_engine(self) -> EngineReady | None:
        told = ""
        with self._engine_client() as engine:
            while not self._signals:
                self._check_engine_lives()
                try:
                    ready = engine.ready()
                except EngineLostError as error:
                    # A connection refused only says that the process has not come to listening yet.
                    message = error.reason if isinstance(error, EngineNotReadyError) else ""
                    if message and message != told and self._engine is None:  # our own writes to this stderr
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

    def _watch(self, membership: Membership, ready: EngineReady) -> None:
        """Start the pullers and keep everything running until a signal."""
        environment = child_environment(self._settings)
        quiet = ["--quiet"] if self._plan.quiet else []
        command = module_command("worker.cli", "pull", *quiet)
        for number in range(1, self._plan.pullers + 1):
            self._pullers.append(Child(f"puller {number}", command, environment=environment))
            self._pullers[-1].start()
        command = module_command("worker.cli", "janitor", *quiet)
        self._janitor = Child("janitor", command, environment=environment)
        self._janitor.start()
        self._say_ready(ready)
        next_card = time.monotonic() + CARD_EVERY_SECONDS
        with self._engine_client() as engine:
            while not self._signals:
                self._check_redis_lives()
                for child in self._restartable():
                    child.keep_running()
                if time.monotonic() >= next_card:
                    self._renew(membership, engine)
                    next_card = time.monotonic() + CARD_EVERY_SECONDS
                time.sleep(_TICK_SECONDS)
        membership.leave()

    def _renew(self, membership: Membership, engine: EngineClient) -> None:
        try:
            membership.renew(engine.ready(seconds=_ASK_SECONDS), state=EngineState.READY)
        except EngineLostError as error:
            starting = isinstance(error, EngineNotReadyError) or self._engine is not None
            membership.renew(None, state=EngineState.STARTING if starting else EngineState.LOST)

    def _restartable(self) -> list[Child]:
        parts = [self._engine, self._janitor, *self._pullers]
        return [child for child in parts if child is not None]

    def _check_redis_lives(self) -> None:
        if self._redis is not None and self._redis.exit_code is not None:
            raise NodeStartError("the embedded redis-server ended, and the queue with it; start again")

    def _say_ready(self, ready: EngineReady) -> None:
        settings = self._settings
        command, remark = submit_command(settings, is_random=ready.checkpoint.weights == "random")
        self._tell(
            f"ready: node {settings.node} serves {ready.checkpoint.name} on {ready.environment.device}"
        )
        self._tell(f"submit: {command}{remark}")
        self._on_ready(
            {
                "event": "ready",
                "redis_url": mask_secrets(settings.redis_url),
                "engine_url": settings.engine_url,
                "storage_url": shown_storage(settings.storage_url),
                "fleet": settings.fleet,
                "node": settings.node,
                "checkpoint": ready.checkpoint.name,
                "submit": command,
            }
        )

    def _end(self) -> None:
        """Stop taking, finish, unload, stop Redis; also after a failure at any point."""
        self._end_pullers()
        end_all([self._janitor] if self._janitor else [], seconds=_QUICK_END_SECONDS)
        seconds = _HURRIED_END_SECONDS if self._hurried else _ENGINE_END_SECONDS
        end_all([self._engine] if self._engine else [], seconds=seconds)
        end_all([self._redis] if self._redis else [], seconds=_QUICK_END_SECONDS)

    def _end_pullers(self) -> None:
        """Let running jobs finish; the drain time and a second signal end the wait."""
        signals = min(self._signals, 1)  # the second may have come before this was reached
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
        end_all(self._pullers, seconds=_GIVE_BACK_SECONDS)  # the second signal: jobs are given back


def check_plan(plan: NodePlan) -> None:
    """Refuse a plan that cannot run, before anything is started. Raises SettingsError."""
    if not 1 <= plan.pullers <= 16:
        raise SettingsError(f"{plan.pullers} pullers; a node has 1 to 16")
    if plan.drain_seconds < 0:
        raise SettingsError(f"a drain of {plan.drain_seconds} seconds; give 0 or more")
    if plan.embedded and plan.settings.redis_named:
        raise SettingsError(
            "--embedded starts a queue of its own, but --redis or H3_REDIS_URL names one; leave out either"
        )
    if plan.redis_port is not None and not plan.embedded:
        raise SettingsError("--redis-port is the port of an embedded redis-server; give --embedded with it")
    if plan.redis_port is not None and not 0 <= plan.redis_port <= 65_535:
        raise SettingsError(f"redis port {plan.redis_port}: a port lies between 0 and 65535")
