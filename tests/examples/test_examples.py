"""The examples, as a reader would start them, against a real Redis and a node of a few lines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
NODE = REPOSITORY / "tests" / "client" / "fake_demo_node.py"


def example(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={name: value for name, value in os.environ.items() if not name.startswith("H3_")},
        cwd=REPOSITORY,
        check=False,
    )


@pytest.fixture
def store(redis_url: str, tmp_path: Path) -> "Path":
    return tmp_path / "store"


def test_a_sweep_is_made_and_its_timings_are_read(redis_url: str, store: Path) -> None:
    store.mkdir()
    node = subprocess.Popen(
        [sys.executable, str(NODE), redis_url, str(store), "works"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert node.stdout is not None
        assert '"ready"' in node.stdout.readline()
        first = example("sweep.py", "--redis", redis_url, "--storage", str(store), "--steps", "4")
    finally:
        node.kill()
        node.communicate()
    again = example("sweep.py", "--redis", redis_url, "--storage", str(store), "--steps", "4")
    timings = example("collect_timings.py", "--storage", str(store))
    nothing = example("collect_timings.py", "--storage", str(store / "empty"))

    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert first.stdout.count(": succeeded") == 4
    films = [Path(line) for line in first.stdout.splitlines() if line.endswith(".mp4")]
    assert len(films) == 4
    assert all(film.read_bytes() == b"film" for film in films)
    assert again.stdout == first.stdout or sorted(again.stdout.splitlines()) == sorted(
        first.stdout.splitlines()
    )
    assert timings.returncode == 0
    assert timings.stdout.splitlines()[1].split() == ["unknown", "192x128", "39", "4", "4", "0.375", "2.500"]
    assert (nothing.returncode, len(nothing.stdout.splitlines())) == (1, 1)


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("sweep.py", ["--redis", "redis://127.0.0.1:1/0"], 3),
        ("sweep.py", ["--redis", "http://127.0.0.1"], 2),
        ("collect_timings.py", ["--storage", "ftp://x/y"], 2),
        ("collect_timings.py", ["--sweep", "no-such"], 2),
    ],
)
def test_what_fails_is_one_sentence_and_the_exit_code_of_h3(
    tmp_path: Path, name: str, arguments: list[str], code: int
) -> None:
    done = example(name, "--storage", str(tmp_path), *arguments)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done.stderr
