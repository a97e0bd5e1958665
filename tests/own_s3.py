"""An S3 service of one test: it can be killed, and comes back empty, at the same address."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

SERVER: Final = Path(__file__).parent / "storage" / "s3_server.py"
CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "AKIAFORTESTSONLY",
    "AWS_SECRET_ACCESS_KEY": "a-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_START_SECONDS: Final = 60.0


class OwnS3:
    """A service with one bucket; whoever uses it needs `CREDENTIALS` in its environment."""

    def __init__(self, *, folder: Path, port: int) -> None:
        self._endpoint, self._port = f"http://127.0.0.1:{port}", port
        self.url = f"s3://films/h3?endpoint={self._endpoint}&region=us-east-1"
        self._command = [sys.executable, str(SERVER), str(port), str(folder / "requests")]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it has its bucket."""
        import boto3.session

        environment = {**os.environ, **CREDENTIALS}
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL, env=environment)
        deadline = time.monotonic() + _START_SECONDS
        while not self._listens():
            assert self._process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        session = boto3.session.Session(*(CREDENTIALS[name] for name in names), region_name="us-east-1")
        session.client("s3", endpoint_url=self._endpoint).create_bucket(Bucket="films")

    def kill(self) -> None:
        """End it at once (-9), with all that it held."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _listens(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self._port)) == 0
