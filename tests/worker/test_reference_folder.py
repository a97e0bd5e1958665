"""The folder of references: content by its hash, held while it is used, bounded, shared by processes."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from worker.output_root import remove_leftovers
from worker.reference_folder import HeldFile, ReferenceFolder, ReferenceFolderError


def keep(folder: ReferenceFolder, data: bytes) -> HeldFile:
    with folder.receiving() as temporary:
        temporary.write_bytes(data)
        return folder.keep(temporary, hashlib.sha256(data).hexdigest())


def names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "references").iterdir())


def test_a_file_is_found_by_its_content_and_kept_once(tmp_path: Path) -> None:
    folder, sha256 = ReferenceFolder(tmp_path), hashlib.sha256(b"meow").hexdigest()
    assert folder.hold(sha256) is None

    with keep(folder, b"meow") as first, keep(folder, b"meow") as second:
        assert first.path == second.path == tmp_path / "references" / sha256
        assert os.fstat(first._descriptor).st_ino == os.fstat(second._descriptor).st_ino
        assert (first.path.read_bytes(), first.size_bytes) == (b"meow", 4)
    assert names(tmp_path) == [sha256]


def test_what_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    folder = ReferenceFolder(tmp_path)

    with suppress(KeyError), folder.receiving() as temporary:
        temporary.write_bytes(b"me")
        raise KeyError

    assert names(tmp_path) == []


@pytest.mark.parametrize("damage", [b"", b"meoW"])
def test_a_damaged_file_is_taken_for_none_and_received_anew(tmp_path: Path, damage: bytes) -> None:
    folder = ReferenceFolder(tmp_path)
    with keep(folder, b"meow") as held:
        sha256 = held.path.name
    held.path.write_bytes(damage)

    assert folder.hold(sha256) is None
    keep(folder, b"meow").close()
    assert held.path.read_bytes() == b"meow"


def test_the_longest_unused_is_let_go_of_but_never_what_somebody_holds(tmp_path: Path) -> None:
    folder = ReferenceFolder(tmp_path, kept_bytes=25)
    oldest = keep(folder, b"0" * 10)
    for number, data in enumerate((b"1" * 5, b"2" * 10)):
        with keep(folder, data) as file:
            os.utime(file.path, (number + 1, number + 1))
    os.utime(oldest.path, (0, 0))

    keep(folder, b"3" * 10).close()

    def left() -> set[bytes]:
        return {path.read_bytes()[:1] for path in (tmp_path / "references").iterdir()}

    assert left() == {b"0", b"3"}  # of "1" and "2" neither fits beside what is held
    oldest.close()
    keep(folder, b"4" * 10).close()
    assert left() == {b"3", b"4"}
    keep(folder, b"5" * 20).close()
    assert left() == {b"5"}


def test_a_process_that_is_killed_holds_nothing_and_its_rest_is_removed_a_day_later(
    tmp_path: Path, eventually: Callable[..., None]
) -> None:
    folder = ReferenceFolder(tmp_path, kept_bytes=5)
    with keep(folder, b"meow") as held:
        sha256 = held.path.name
    program = (
        "import sys, pathlib, time; from worker.reference_folder import ReferenceFolder\n"
        "folder = ReferenceFolder(pathlib.Path(sys.argv[1])); held = folder.hold(sys.argv[2])\n"
        "with folder.receiving() as temporary:\n"
        "    temporary.write_bytes(b'me'); print('holding', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), sha256], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"holding\n"
        keep(folder, b"purr").close()
        assert held.path.exists()  # the other process has it

        other.send_signal(signal.SIGKILL)
        other.wait()

    keep(folder, b"hiss").close()
    assert not held.path.exists()
    assert len([name for name in names(tmp_path) if name.startswith(".")]) == 1
    assert remove_leftovers(tmp_path, now=held.path.parent.stat().st_mtime + 90_000) == 1
    assert [name for name in names(tmp_path) if name.startswith(".")] == []


def test_many_who_receive_and_hold_the_same_at_once_all_have_it(tmp_path: Path) -> None:
    folder, start = ReferenceFolder(tmp_path, kept_bytes=0), threading.Barrier(8)

    def work(number: int) -> bool:
        start.wait(10)
        for turn in range(10):
            with keep(folder, b"meow") as held:
                if held.path.read_bytes() != b"meow":
                    return False
            keep(folder, b"%d %d" % (number, turn)).close()  # lets go of what nobody holds
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))


def test_a_folder_that_takes_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / "references").write_bytes(b"in the way")

    with pytest.raises(ReferenceFolderError, match="make room") as caught:
        keep(ReferenceFolder(tmp_path), b"meow")

    assert caught.value.code.retryable


def test_a_full_disk_is_told_and_lets_go_of_what_nobody_needs(tmp_path: Path) -> None:
    folder = ReferenceFolder(tmp_path)
    keep(folder, b"meow").close()

    with pytest.raises(ReferenceFolderError, match="no space left"), folder.receiving():
        Path("/dev/full").write_bytes(b"x")

    assert names(tmp_path) == []
