"""Reading what a person named ends, whatever kind of file it is."""

import os
import threading
from pathlib import Path

import pytest

from client.errors import SweepInputError
from client.given_files import read_given_file
from client.sweep_files import read_sweep_file
from client.sweeps import read_prompts


def read(path: Path, *, limit_bytes: int = 100) -> bytes:
    return read_given_file(path, limit_bytes=limit_bytes, what="prompts file")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"x" * 100)

    assert read(tmp_path / "p") == b"x" * 100
    with pytest.raises(SweepInputError, match="more than 99 bytes are no prompts file"):
        read(tmp_path / "p", limit_bytes=99)


def test_a_pipe_that_nobody_writes_to_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert read(tmp_path / "pipe") == b""
    with pytest.raises(SweepInputError, match="holds no prompt"):
        read_prompts(tmp_path / "pipe")
    with pytest.raises(SweepInputError, match="expected names and values"):
        read_sweep_file(tmp_path / "pipe", fields={})


def test_a_pipe_is_read_to_its_end_as_of_a_shells_substitution() -> None:
    out, into = os.pipe()
    began = threading.Event()

    def write() -> None:
        with os.fdopen(into, "wb") as pipe:
            began.wait()
            pipe.write(b"a fox\n")
            pipe.flush()
            pipe.write(b"a wave\n")

    writer = threading.Thread(target=write)
    writer.start()
    threading.Timer(0.05, began.set).start()  # the reader is likely to wait by then; either way it must work
    assert read(Path(f"/dev/fd/{out}")) == b"a fox\na wave\n"
    writer.join()
    os.close(out)


def test_a_device_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queue_schemas.limits.PROMPTS_BYTES", 1_000)
    monkeypatch.setattr("queue_schemas.limits.SWEEP_BYTES", 1_000)

    with pytest.raises(SweepInputError, match="more than 1,000 bytes are no prompts file"):
        read_prompts(Path("/dev/zero"))
    with pytest.raises(SweepInputError, match="more than 1,000 bytes are no sweep file"):
        read_sweep_file(Path("/dev/zero"), fields={})


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    for path, said in (
        ("none", "No such file"),
        ("loop", "symbolic links"),
        ("x" * 300, "too long"),
        ("", "Is a dir"),
    ):
        with pytest.raises(SweepInputError, match=f"cannot read the prompts file .*{said}"):
            read(tmp_path / path)
