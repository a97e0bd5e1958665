"""The folder store: whole writes, one winner, no way out of the root."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage.errors import (
    ArtifactMissingError,
    ArtifactTooLargeError,
    StorageAddressError,
    StorageUnavailableError,
)
from storage.local import LocalStore, _translated

CREATE_ONCE = """
import sys
from pathlib import Path
from storage.local import LocalStore
store, name = LocalStore(Path(sys.argv[1])), sys.argv[2]
sys.stdin.readline()
print(sum(store.put_if_absent(f"runs/a/{n}/manifest.json", name.encode() * 1000) for n in range(50)))
"""

WRITE_FOREVER = """
import sys
from pathlib import Path
from storage.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
print("ready", flush=True)
n = 0
while True:
    store.put_if_absent(f"runs/a/{n}/manifest.json", b"x" * 300_000)
    store.put_bytes("runs/a/latest.json", bytes([n % 256]) * 300_000)
    n += 1
"""

WRITE_OVER_THE_LIMIT = """
import resource, sys
from pathlib import Path
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


def test_what_is_written_is_read_back_with_its_hash(store: LocalStore) -> None:
    written = store.put_bytes("runs/a/1/record.json", b"{}")

    assert store.read_bytes("runs/a/1/record.json", limit_bytes=2) == b"{}"
    assert (written.name, written.size_bytes) == ("runs/a/1/record.json", 2)
    assert written.sha256 == hashlib.sha256(b"{}").hexdigest()
    assert Path(store.locate("runs/a/1/record.json")).read_bytes() == b"{}"


def test_a_file_is_streamed_in_with_its_hash_and_leaves_no_temporary(
    store: LocalStore, tmp_path: Path
) -> None:
    source = tmp_path / "film.mp4"
    source.write_bytes(os.urandom(2_500_000))

    written = store.put_file("runs/a/video.mp4", source)

    assert written.size_bytes == 2_500_000
    assert written.sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    assert files_below(store.root) == ["runs/a/video.mp4"]
    with store.open("runs/a/video.mp4") as stream:
        assert stream.read() == source.read_bytes()


def test_a_missing_source_is_not_blamed_on_the_store(store: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.put_file("runs/a/video.mp4", tmp_path / "nothing.mp4")

    assert list(store.list("")) == []


def test_opening_a_store_creates_nothing(store: LocalStore) -> None:
    assert list(store.list("")) == []
    assert store.read_bytes("sweeps/a/sweep.json", limit_bytes=10) is None
    assert not store.root.exists()


def test_a_missing_artifact_is_none_to_read_and_an_error_to_open(store: LocalStore) -> None:
    assert store.read_bytes("runs/a.json", limit_bytes=10) is None
    with pytest.raises(ArtifactMissingError, match=r"runs/a\.json"):
        store.open("runs/a.json")


def test_a_folder_or_a_pipe_under_a_key_is_no_artifact(store: LocalStore) -> None:
    store.put_bytes("runs/a/x.json", b"{}")
    os.mkfifo(store.root / "runs" / "pipe")

    assert store.read_bytes("runs/a", limit_bytes=10) is None
    assert store.read_bytes("runs/a/x.json/y", limit_bytes=10) is None
    assert store.read_bytes("runs/pipe", limit_bytes=10) is None


def test_more_than_the_limit_is_refused(store: LocalStore) -> None:
    store.put_bytes("a", b"x" * 11)

    with pytest.raises(ArtifactTooLargeError, match="10 bytes"):
        store.read_bytes("a", limit_bytes=10)


def test_a_name_is_created_once(store: LocalStore) -> None:
    assert store.put_if_absent("runs/a/1/manifest.json", b"first") is True
    assert store.put_if_absent("runs/a/1/manifest.json", b"second") is False

    assert store.read_bytes("runs/a/1/manifest.json", limit_bytes=100) == b"first"
    assert files_below(store.root) == ["runs/a/1/manifest.json"]


def test_of_many_processes_exactly_one_creates_each_name(store: LocalStore) -> None:
    processes = [start(CREATE_ONCE, store.root, name) for name in "abcd"]

    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    wins = [int(process.communicate(timeout=60)[0]) for process in processes]

    assert sum(wins) == 50
    for key in store.list("runs/"):
        content = store.read_bytes(key, limit_bytes=1000)
        assert content in [name.encode() * 1000 for name in "abcd"]
    assert len(files_below(store.root)) == 50


@pytest.mark.parametrize("number", range(5))
def test_a_process_killed_while_writing_leaves_no_half_artifact(store: LocalStore, number: int) -> None:
    process = start(WRITE_FOREVER, store.root)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    while len(list(store.list("runs/"))) < 2 + number:
        assert process.poll() is None

    process.send_signal(signal.SIGKILL)
    process.communicate()

    for key in store.list(""):
        content = store.read_bytes(key, limit_bytes=300_000)
        assert content is not None
        assert len(content) == 300_000
        assert len(set(content)) == 1


def test_a_write_that_fails_half_way_leaves_nothing_and_says_why(store: LocalStore, tmp_path: Path) -> None:
    source = tmp_path / "film.mp4"
    source.write_bytes(b"x" * 300_000)

    said = start(WRITE_OVER_THE_LIMIT, store.root, source).communicate(timeout=60)[0]

    assert "video.mp4" in said
    assert "larger than this process or file system may write" in said
    assert files_below(store.root) == []


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "the disk is full: free some space or name another folder"),
        (errno.EROFS, "the file system is read-only: name another folder"),
        (errno.EACCES, "this user may not"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_what_the_system_refuses_names_the_path_and_a_remedy(number: int, remedy: str) -> None:
    with pytest.raises(StorageUnavailableError, match=remedy) as caught, _translated("write", Path("/x/y")):
        raise OSError(number, os.strerror(number))

    assert "/x/y" in str(caught.value)


def test_a_root_that_is_a_file_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageUnavailableError, match="is a file, not a folder"):
        LocalStore(tmp_path / "file").put_bytes("a/b", b"")


@pytest.mark.parametrize(
    "key", ["", "/etc/x", "../x", "a/../b", "a//b", "a/", ".hidden", "a/.x", "a\0b", "a\nb", "é", "x" * 513]
)
def test_a_key_that_is_no_plain_name_is_refused(store: LocalStore, key: str) -> None:
    for act in (
        lambda: store.put_bytes(key, b""),
        lambda: store.put_if_absent(key, b""),
        lambda: store.read_bytes(key, limit_bytes=1),
        lambda: store.open(key),
        lambda: store.locate(key),
    ):
        with pytest.raises(StorageAddressError):
            act()
    assert not store.root.exists()


@pytest.mark.parametrize("prefix", ["..", "../", "/etc", "runs/../..", ".x"])
def test_a_listing_stays_in_the_root(store: LocalStore, prefix: str) -> None:
    with pytest.raises(StorageAddressError):
        list(store.list(prefix))


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


def test_a_listing_is_in_order_of_whole_keys_and_honours_a_partial_prefix(store: LocalStore) -> None:
    keys = ["runs/a.txt", "runs/a/1", "runs/a/2", "runs/ab/1", "runs/b/1", "sweeps/a/1"]
    for key in reversed(keys):
        store.put_bytes(key, b"")

    assert list(store.list("")) == sorted(keys)
    assert list(store.list("runs/a")) == ["runs/a.txt", "runs/a/1", "runs/a/2", "runs/ab/1"]
    assert list(store.list("runs/a/")) == ["runs/a/1", "runs/a/2"]
    assert list(store.list("nothing/")) == []


def test_a_root_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    LocalStore(tmp_path / "link").put_bytes("a/b", b"1")

    assert (tmp_path / "real" / "a" / "b").read_bytes() == b"1"
