"""A redis-server of one test: it can be killed, frozen, and made to refuse."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import redis


class OwnRedis:
    """A server that keeps its data in an append-only file in `folder`."""

    def __init__(self, program: str, *, folder: Path, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self._folder = folder
        self._command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
        self._command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        self._command += ["--logfile", str(folder / "redis.log")]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._folder.mkdir(exist_ok=True)
        self._process = subprocess.Popen(self._command, start_new_session=True)
        with self._operator() as connection:
            while True:
                assert self._process.poll() is None, "redis-server ended while starting"
                try:
                    connection.ping()
                    return
                except redis.exceptions.ConnectionError:
                    os.sched_yield()

    def kill(self) -> None:
        """End it at once (-9)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Let it be silent: its kernel goes on accepting connections."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def refuse_as_full(self) -> None:
        """Take no writes, as a server at its maxmemory."""
        with self._operator() as connection:
            connection.config_set("maxmemory-policy", "noeviction")
            connection.config_set("maxmemory", 1)

    def refuse_as_replica(self) -> None:
        """Take no writes, as after a failover."""
        with self._operator() as connection:
            connection.replicaof("127.0.0.1", 1)

    def refuse_for_its_disk(self) -> None:
        """Take no writes, as after a save that failed; its folder is gone for good."""
        shutil.rmtree(self._folder)
        with self._operator() as connection:
            connection.config_set("save", "3600 1000000")
            connection.bgsave()
            while connection.info("persistence")["rdb_last_bgsave_status"] == "ok":
                os.sched_yield()

    def accept(self) -> None:
        """Take writes again, unless its folder is gone."""
        with self._operator() as connection:
            connection.config_set("maxmemory", 0)
            connection.replicaof("NO", "ONE")

    def _operator(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, retry=None)
