"""The engine's process ends with its loader's failure, whatever kind that is."""

import subprocess
import sys

import pytest

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
