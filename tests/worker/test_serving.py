"""The engine's process: how it ends, by its loader's failure or by a signal."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from worker.engine_client import EngineAddress, EngineClient
from worker.errors import SettingsError
from worker.serving import PortTakenError, serve

PROGRAM = """
import typer
from worker.command import reported
from worker.errors import SettingsError
from worker.serving import serve

class PanicException(BaseException):
    "As a panic inside a Rust extension arrives."

def load(tell):
    raise {failure}

def main():
    with reported():
        serve(load, host="127.0.0.1", port={port}, api_token=None)

typer.run(main)
"""


@pytest.mark.parametrize(
    ("failure", "code", "sentence"),
    [
        ("SettingsError('a sentence')", 2, "error: a sentence"),
        ("KeyError('x')", 3, "error: KeyError: 'x'"),
        ("PanicException('index out of bounds')", 3, "ended with PanicException: index out of bounds"),
        ("SystemExit(0)", 3, "ended with SystemExit"),
    ],
)
def test_a_loader_that_fails_ends_the_process_with_one_sentence(
    free_port: int, failure: str, code: int, sentence: str
) -> None:
    program = PROGRAM.format(failure=failure, port=free_port)

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False
    )

    assert done.returncode == code
    assert sentence in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("host", ["nope.invalid", "a..b", "192.0.2.1", "::ffff:192.0.2.1", ""])
def test_a_host_that_is_not_this_machine_is_refused_with_advice_about_it(free_port: int, host: str) -> None:
    with pytest.raises(SettingsError, match=r"--host .*name .* such as 127\.0\.0\.1"):
        serve(lambda tell: pytest.fail("loaded"), host=host, port=free_port, api_token="a-token")


def test_a_port_that_is_taken_is_told_with_what_can_be_done() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(PortTakenError, match=rf":{port} .*; stop what listens there, or set H3_PORT"):
            serve(lambda tell: pytest.fail("loaded"), host="127.0.0.1", port=port, api_token=None)


SLOW_JOB = """
from pathlib import Path
from fake_pipeline import FakePipeline
from worker.engine import Engine
from worker.serving import serve

serve(
    lambda tell: Engine(FakePipeline(), output_root=Path({root!r})),
    host="127.0.0.1", port={port}, api_token=None, grace_seconds=0.2,
)
"""


@pytest.mark.parametrize("accept", ["application/x-ndjson", "application/json"])
def test_a_signal_ends_an_open_generation_with_an_error_that_lets_its_caller_try_again(
    *, free_port: int, tmp_path: Path, make_fields: Callable[..., dict[str, Any]], accept: str
) -> None:
    program = SLOW_JOB.format(root=str(tmp_path), port=free_port)
    engine = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parent)
    try:
        with EngineClient(EngineAddress(f"http://127.0.0.1:{free_port}")) as client:
            client.wait_ready(seconds=20)
        ended = threading.Timer(0.5, engine.terminate)
        ended.start()

        answer = httpx.post(
            f"http://127.0.0.1:{free_port}/generate",
            json=make_fields(prompt="hold"),
            headers={"Accept": accept},
            trust_env=False,
        )
    finally:
        engine.kill()
        engine.wait()

    last = json.loads(answer.text.splitlines()[-1])
    assert last["error"] == {"code": "engine_lost", "message": "the engine is ending", "retryable": True}
