"""The folder store: whole writes, one winner, no way out of the root."""

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage.errors import (
    StorageAddressError,
    StorageUnavailableError,
)
from storage.local import LocalStore, _translated

STORE_FILE = """
import sys
from pathlib import Path
from typing import Any
from storage.local import LocalStore
LocalStore(Path(sys.argv[1])).put_file("runs/a/video.mp4", Path(sys.argv[2]))
"""

WRITE_OVER_THE_LIMIT = """
import resource, sys
from pathlib import Path
from typing import Any
from storage.errors import StorageUnavailableError
from storage.local import LocalStore
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
store = LocalStore(Path(sys.argv[1]))
try:
    store.put_file("runs/a/video.mp4", Path(sys.argv[2]))
except StorageUnavailableError as error:
    print(error)
"""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def start(script: str, *arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_an_artifact_is_a_file_that_a_person_can_open(store: LocalStore) -> None:
    store.put_bytes("runs/a/1/record.json", b"{}")

    assert Path(store.locate("runs/a/1/record.json")).read_bytes() == b"{}"


def test_nothing_temporary_is_left(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(b"x" * 2_500_000)

    store.put_file("runs/a/video.mp4", tmp_path / "film.mp4")
    store.put_if_absent("runs/a/manifest.json", b"1")
    store.put_if_absent("runs/a/manifest.json", b"2")
    store.conditional_writes()

    assert files_below(store.root) == ["runs/a/manifest.json", "runs/a/video.mp4"]


def test_what_a_killed_writer_left_is_removed_when_it_is_old(store: LocalStore, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless.mp4")
    process = start(STORE_FILE, store.root, tmp_path / "endless.mp4")
    with (tmp_path / "endless.mp4").open("wb"):  # the writer waits for more
        while not files_below(store.root):
            assert process.poll() is None
        process.kill()
        process.communicate()
    (left,) = files_below(store.root)
    store.put_bytes("runs/a/b.tmp", b"an artifact")
    assert list(store.list("")) == ["runs/a/b.tmp"]

    assert store.remove_abandoned(older_than_seconds=3600) == 0
    os.utime(store.root / left, (0, 0))
    os.utime(store.root / "runs/a/b.tmp", (0, 0))
    others = store.root / "others" / Path(left).name
    others.parent.mkdir()
    others.touch()
    os.utime(others, (0, 0))

    assert store.remove_abandoned(older_than_seconds=3600) == 1
    assert files_below(store.root) == [f"others/{others.name}", "runs/a/b.tmp"]


def test_an_upload_that_is_cleaned_away_in_its_middle_fails_and_can_be_repeated(
    store: LocalStore, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "slow.mp4")
    with ThreadPoolExecutor(1) as thread, (tmp_path / "slow.mp4").open("r+b", buffering=0) as film:
        upload = thread.submit(store.put_file, "runs/a/video.mp4", tmp_path / "slow.mp4")
        film.write(b"the beginning")
        while not files_below(store.root):
            assert not upload.done()

        assert store.remove_abandoned(older_than_seconds=3600) == 0  # while it is written it is young
        os.utime(store.root / files_below(store.root)[0], (0, 0))
        assert store.remove_abandoned(older_than_seconds=3600) == 1

    assert isinstance(upload.exception(), StorageUnavailableError)
    (tmp_path / "film.mp4").write_bytes(b"all of it")
    store.put_file("runs/a/video.mp4", tmp_path / "film.mp4")
    assert files_below(store.root) == ["runs/a/video.mp4"]


def test_names_that_are_no_keys_are_not_listed(store: LocalStore) -> None:
    store.put_bytes("runs/a.json", b"{}")
    (store.root / "runs" / "a copy of a.json").write_text("{}")

    assert list(store.list("")) == ["runs/a.json"]


def test_a_key_that_is_refused_creates_no_folder(store: LocalStore) -> None:
    with pytest.raises(StorageAddressError):
        store.put_bytes("../x", b"")

    assert not store.root.exists()


def test_opening_a_store_creates_nothing(store: LocalStore) -> None:
    assert list(store.list("")) == []
    assert store.read_bytes("sweeps/a/sweep.json", limit_bytes=10) is None
    assert not store.root.exists()


def test_a_folder_or_a_pipe_under_a_key_is_no_artifact(store: LocalStore) -> None:
    store.put_bytes("runs/a/x.json", b"{}")
    os.mkfifo(store.root / "runs" / "pipe")

    assert store.read_bytes("runs/a", limit_bytes=10) is None
    assert store.read_bytes("runs/a/x.json/y", limit_bytes=10) is None
    assert store.read_bytes("runs/pipe", limit_bytes=10) is None


def test_a_write_that_fails_half_way_leaves_nothing_and_says_why(store: LocalStore, tmp_path: Path) -> None:
    source = tmp_path / "film.mp4"
    source.write_bytes(b"x" * 300_000)

    said = start(WRITE_OVER_THE_LIMIT, store.root, source).communicate(timeout=60)[0]

    assert "video.mp4" in said
    assert "larger than this process or file system may write" in said
    assert files_below(store.root) == []


@pytest.mark.parametrize(
    ("number", "remedy", "is_lasting"),
    [
        (errno.ENOSPC, "the disk is full: free some space or name another folder", False),
        (errno.EROFS, "the file system is read-only: name another folder", True),
        (errno.EACCES, "this user may not", True),
        (errno.EIO, "Input/output error", False),
    ],
)
def test_what_the_system_refuses_names_the_path_and_a_remedy(
    *, number: int, remedy: str, is_lasting: bool
) -> None:
    with pytest.raises(StorageUnavailableError, match=remedy) as caught, _translated("write", Path("/x/y")):
        raise OSError(number, os.strerror(number))

    assert "/x/y" in str(caught.value)
    assert caught.value.is_lasting is is_lasting


def test_a_root_that_is_a_file_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageUnavailableError, match="is a file, not a folder"):
        LocalStore(tmp_path / "file").put_bytes("a/b", b"")


def test_a_link_that_leaves_the_root_is_not_followed(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.json").write_text("secret")
    store.put_bytes("runs/a.json", b"{}")
    (store.root / "runs" / "out").symlink_to(outside)
    (store.root / "runs" / "file.json").symlink_to(outside / "secret.json")

    with pytest.raises(StorageAddressError, match="leaves"):
        store.put_bytes("runs/out/new.json", b"{}")
    with pytest.raises(StorageAddressError, match="leaves"):
        store.read_bytes("runs/out/secret.json", limit_bytes=100)
    with pytest.raises(StorageAddressError, match="leaves"):
        store.read_bytes("runs/file.json", limit_bytes=100)
    assert list(store.list("")) == ["runs/a.json"]
    assert not (outside / "new.json").exists()


def test_writing_onto_a_link_replaces_the_link(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text("untouched")
    store.put_bytes("runs/a.json", b"{}")
    (store.root / "runs" / "b.json").symlink_to(outside)

    store.put_bytes("runs/b.json", b"{}")

    assert outside.read_text() == "untouched"
    assert store.read_bytes("runs/b.json", limit_bytes=10) == b"{}"


def test_a_link_that_leads_to_itself_is_no_artifact_and_no_folder(store: LocalStore) -> None:
    store.put_bytes("runs/a.json", b"{}")
    (store.root / "runs" / "loop.json").symlink_to(store.root / "runs" / "loop.json")
    (store.root / "runs" / "loop").symlink_to(store.root / "runs" / "loop")

    for key in ("runs/loop.json", "runs/loop/a.json"):
        with pytest.raises(StorageAddressError, match="leads to itself"):
            store.read_bytes(key, limit_bytes=10)
    with pytest.raises(StorageAddressError, match="leads to itself"):
        store.put_bytes("runs/loop/a.json", b"")
    assert list(store.list("runs/")) == ["runs/a.json"]


def test_a_listing_looks_only_where_its_prefix_leads(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("aa", "ab", "b"):
        store.put_bytes(f"runs/{run}/1/manifest.json", b"")
    looked_at, scandir = list[str](), os.scandir

    def noting_scandir(path: Path) -> Any:
        looked_at.append(str(path.relative_to(store.root)))
        return scandir(path)

    monkeypatch.setattr("os.scandir", noting_scandir)

    assert len(list(store.list("runs/ab"))) == 1
    assert looked_at == ["runs", "runs/ab", "runs/ab/1"]
    looked_at.clear()
    assert list(store.folders("runs/a")) == ["runs/aa", "runs/ab"]
    assert looked_at == ["runs"]


def test_a_root_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    LocalStore(tmp_path / "link").put_bytes("a/b", b"1")

    assert (tmp_path / "real" / "a" / "b").read_bytes() == b"1"
