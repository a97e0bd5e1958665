"""The cache's folder with real files and processes: bounds, kills, neighbours, disks that take nothing."""

import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from model.conditioning.folder import STALE_SECONDS, FolderLevel

WRITER = """
import hashlib, sys
from pathlib import Path
from model.conditioning.folder import FolderLevel

folder, start, count, size, bound = Path(sys.argv[1]), *map(int, sys.argv[2:])
level = FolderLevel(folder, max_bytes=bound)
print("ready", flush=True)
sys.stdin.readline()
for number in range(start, start + count):
    data = bytes([number % 256]) * size
    key = hashlib.sha256(data[:1]).hexdigest()
    level.put(key, data)
    found = level.get(key, limit_bytes=size)
    assert found in (None, data), "a torn entry"
"""
ROOT = Path(__file__).parents[2]


def key_of(number: int) -> str:
    return hashlib.sha256(bytes([number % 256])).hexdigest()


def sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.glob("*.safetensors")]


@contextmanager
def writer(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that waits for a line and then writes."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_the_bound_holds_and_what_was_used_longest_ago_goes(tmp_path: Path) -> None:
    level = FolderLevel(tmp_path, max_bytes=3_000)
    for number in range(3):
        level.put(key_of(number), bytes([number]) * 1_000)
    assert level.get(key_of(0), limit_bytes=1_000) == bytes(1_000)

    level.put(key_of(3), b"\3" * 1_000)
    level.put(key_of(4), b"\4" * 3_001)

    assert sizes(tmp_path) == [1_000] * 3
    there = [number for number in range(5) if level.get(key_of(number), limit_bytes=1_000)]
    assert there == [0, 2, 3]


def test_a_file_that_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    level = FolderLevel(tmp_path, max_bytes=10_000)
    level.put(key_of(0), bytes(5_000))

    found = level.get(key_of(0), limit_bytes=100)

    assert found is not None
    assert len(found) == 101


def test_files_of_others_stay_and_are_not_counted(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_bytes(bytes(9_000))
    level = FolderLevel(tmp_path, max_bytes=2_000)

    for number in range(3):
        level.put(key_of(number), bytes(1_000))

    assert notes.exists()
    assert sizes(tmp_path) == [1_000] * 2


def test_a_writer_that_is_killed_leaves_no_bad_entry_and_what_it_began_goes(tmp_path: Path) -> None:
    size = 30_000_000
    with writer(tmp_path, 0, 1_000_000, size, 10 * size) as process:
        begin(process)
        while not list(tmp_path.glob(".*.part")):  # in the middle of one
            process.send_signal(signal.SIGCONT)
            time.sleep(0.002)
            process.send_signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        process.kill()
        process.wait()
    (unfinished,) = tmp_path.glob(".*.part")
    level = FolderLevel(tmp_path, max_bytes=10 * size)

    for number in range(256):
        found = level.get(key_of(number), limit_bytes=size)
        assert found in (None, bytes([number]) * size)
    level.put(key_of(0), b"new")
    assert unfinished.exists()  # its writer may live
    then = time.time() - STALE_SECONDS - 1
    os.utime(unfinished, (then, then))
    level.put(key_of(1), b"new")

    assert not unfinished.exists()


def test_two_processes_share_a_folder_and_its_bound(tmp_path: Path) -> None:
    with writer(tmp_path, 0, 300, 10_000, 100_000) as one, writer(tmp_path, 5, 300, 10_000, 100_000) as two:
        begin(one)
        begin(two)
        said = [process.communicate()[1] for process in (one, two)]

        assert [process.returncode for process in (one, two)] == [0, 0]

    assert said == ["", ""]  # no warning either
    assert 0 < sum(sizes(tmp_path)) <= 100_000
    assert not list(tmp_path.glob(".*.part"))


def test_a_folder_that_cannot_be_made_costs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")

    level = FolderLevel(tmp_path / "file" / "cache", max_bytes=1_000)
    level.put(key_of(0), b"entry")

    assert level.get(key_of(0), limit_bytes=10) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "--conditioning-dir" in caplog.text


def test_a_disk_that_takes_no_more_costs_one_warning_and_no_bad_entry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    level = FolderLevel(tmp_path, max_bytes=1_000_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))  # as a full disk: the first bytes go in
    try:
        for number in range(2):
            level.put(key_of(number), bytes(5_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert list(tmp_path.iterdir()) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_what_a_disk_has_left_is_kept_for_films(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    level = FolderLevel(tmp_path, max_bytes=1_000, free_bytes=10**18)

    level.put(key_of(0), b"entry")

    assert list(tmp_path.iterdir()) == []
    assert "would be left" in caplog.text


def test_a_folder_that_is_removed_meanwhile_is_a_miss(tmp_path: Path) -> None:
    level = FolderLevel(tmp_path / "cache", max_bytes=1_000)
    (tmp_path / "cache").rmdir()

    assert level.get(key_of(0), limit_bytes=10) is None
    level.put(key_of(0), b"entry")
    assert level.get(key_of(0), limit_bytes=10) is None
