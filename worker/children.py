"""Child processes of the supervisor: each in its own session, tied to its life, restarted with back-off.

A session of its own keeps a terminal's Ctrl-C, and the hang-up that follows a stopped child, away from the
others. What a child prints goes to this process's stderr: stdout belongs to the one line that says "ready".
"""

import logging
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from worker.lifeline import tied_command

log = logging.getLogger(__name__)

BACKOFF_FIRST_SECONDS: Final = 0.5
BACKOFF_LAST_SECONDS: Final = 30.0
HEALTHY_SECONDS: Final = 60.0
"""A child that lived this long starts again with the first back-off."""


class Child:
    """One program that should be running."""

    def __init__(self, name: str, command: Sequence[str], *, environment: Mapping[str, str]) -> None:
        self.name = name
        self._command, self._environment = list(command), dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._backoff = BACKOFF_FIRST_SECONDS
        self._restart_at: float | None = None

    def start(self) -> None:
        """Start it. Call from the main thread: the child dies with the thread that started it."""
        self._process = subprocess.Popen(
            tied_command(self._command),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            stderr=sys.stderr.fileno(),
            start_new_session=True,
        )
        self._started, self._restart_at = time.monotonic(), None
        log.info("%s: started (pid %d)", self.name, self._process.pid)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and before its first start."""
        return None if self._process is None else self._process.poll()

    def keep_running(self) -> bool:
        """Restart it when it has ended and its back-off is over; True when it was started just now."""
        code = self.exit_code
        if code is None:
            return False
        now = time.monotonic()
        if self._restart_at is None:
            if now - self._started >= HEALTHY_SECONDS:
                self._backoff = BACKOFF_FIRST_SECONDS
            log.warning("%s: ended with %d; starts again in %.1f s", self.name, code, self._backoff)
            self._restart_at = now + self._backoff
            self._backoff = min(2 * self._backoff, BACKOFF_LAST_SECONDS)
        if now < self._restart_at:
            return False
        self.start()
        return True

    def signal_end(self) -> None:
        """Ask it to end (SIGTERM)."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now and collect it."""
        if self._process is not None:
            if self._process.poll() is None:
                log.warning("%s: killed (pid %d)", self.name, self._process.pid)
                self._process.kill()
            self._process.wait()


def end_all(children: Sequence[Child], *, seconds: float) -> None:
    """Ask all to end, give them `seconds` together, kill the rest; nothing is left running."""
    for child in children:
        child.signal_end()
    deadline = time.monotonic() + seconds
    while any(child.exit_code is None and child.pid for child in children) and time.monotonic() < deadline:
        time.sleep(0.02)
    for child in children:
        child.kill()
