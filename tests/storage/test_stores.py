"""What every store promises: the same tests on a folder and on an S3 service."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.base import ArtifactStore
from storage.errors import ArtifactMissingError, ArtifactTooLargeError, StorageAddressError
from storage.layout import shortest_odd
from storage.uri import open_store

CREATE_ONCE = """
import sys
from storage.layout import shortest_odd
from storage.uri import open_store
store, name = open_store(sys.argv[1]), sys.argv[2]
sys.stdin.readline()
print(sum(store.put_if_absent(f"runs/a/{n}/manifest.json", name.encode() * 1000) for n in range(15)))
"""

WRITE_FOREVER = """
import sys
from storage.layout import shortest_odd
from storage.uri import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
n = 0
while True:
    store.put_if_absent(f"runs/a/{n}/manifest.json", b"x" * 300_000)
    store.put_bytes("runs/a/latest.json", bytes([n % 256]) * 300_000)
    n += 1
"""


def start(script: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_what_is_written_is_read_back_with_its_hash(store: ArtifactStore) -> None:
    written = store.put_bytes("runs/a/1/record.json", b"{}")

    assert store.read_bytes("runs/a/1/record.json", limit_bytes=2) == b"{}"
    assert (written.name, written.size_bytes) == ("runs/a/1/record.json", 2)
    assert written.sha256 == hashlib.sha256(b"{}").hexdigest()


def test_what_is_written_again_replaces_what_was_there(store: ArtifactStore) -> None:
    store.put_bytes("runs/a.json", b"old and longer")

    store.put_bytes("runs/a.json", b"new")

    assert store.read_bytes("runs/a.json", limit_bytes=100) == b"new"
    assert list(store.list("")) == ["runs/a.json"]


@pytest.mark.parametrize("size", [0, 1, 2_500_000])
def test_a_file_is_streamed_in_and_out_with_its_hash(store: ArtifactStore, tmp_path: Path, size: int) -> None:
    source = tmp_path / "film.mp4"
    source.write_bytes(os.urandom(size))

    written = store.put_file("runs/a/video.mp4", source)

    assert written.size_bytes == size
    assert written.sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    assert list(store.list("")) == ["runs/a/video.mp4"]
    with store.open("runs/a/video.mp4") as stream:
        assert stream.read() == source.read_bytes()


def test_an_artifact_is_read_in_pieces_and_closed_before_its_end(store: ArtifactStore) -> None:
    content = os.urandom(3_000_000)
    store.put_bytes("runs/a/video.mp4", content)

    with store.open("runs/a/video.mp4") as stream:
        head, rest = stream.read(10), stream.read(2_000_000)

    assert head + rest == content[:2_000_010]
    assert stream.closed


def test_a_missing_source_is_not_blamed_on_the_store(store: ArtifactStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.put_file("runs/a/video.mp4", tmp_path / "nothing.mp4")

    assert list(store.list("")) == []


def test_an_empty_store_answers_like_any_other(store: ArtifactStore) -> None:
    assert list(store.list("")) == []
    assert list(store.list("runs/")) == []
    assert store.read_bytes("sweeps/a/sweep.json", limit_bytes=10) is None
    assert store.remove_abandoned(older_than_seconds=0) == 0


def test_a_missing_artifact_is_none_to_read_and_an_error_to_open(store: ArtifactStore) -> None:
    assert store.read_bytes("runs/a.json", limit_bytes=10) is None
    with pytest.raises(ArtifactMissingError, match=r"runs/a\.json"):
        store.open("runs/a.json")


def test_more_than_the_limit_is_refused(store: ArtifactStore) -> None:
    store.put_bytes("a", b"x" * 11)

    assert store.read_bytes("a", limit_bytes=11) == b"x" * 11
    with pytest.raises(ArtifactTooLargeError, match="10 bytes"):
        store.read_bytes("a", limit_bytes=10)


def test_a_name_is_created_once(store: ArtifactStore) -> None:
    assert store.put_if_absent("runs/a/1/manifest.json", b"first") is True
    assert store.put_if_absent("runs/a/1/manifest.json", b"second") is False

    assert store.read_bytes("runs/a/1/manifest.json", limit_bytes=100) == b"first"
    assert list(store.list("")) == ["runs/a/1/manifest.json"]


def test_a_name_that_was_written_without_condition_is_not_created(store: ArtifactStore) -> None:
    store.put_bytes("runs/a/1/manifest.json", b"first")

    assert store.put_if_absent("runs/a/1/manifest.json", b"second") is False
    assert store.read_bytes("runs/a/1/manifest.json", limit_bytes=100) == b"first"


def test_of_many_processes_exactly_one_creates_each_name(store: ArtifactStore, store_url: str) -> None:
    processes = [start(CREATE_ONCE, store_url, name) for name in "abc"]

    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    wins = [int(process.communicate(timeout=120)[0]) for process in processes]

    assert sum(wins) == 15
    keys = list(store.list("runs/"))
    assert len(keys) == 15
    for key in keys:
        assert store.read_bytes(key, limit_bytes=1000) in [name.encode() * 1000 for name in "abc"]


@pytest.mark.parametrize("number", range(3))
def test_a_process_killed_while_writing_leaves_no_half_artifact(
    store: ArtifactStore, store_url: str, number: int
) -> None:
    process = start(WRITE_FOREVER, store_url)
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


def test_a_store_with_conditional_writes_says_so_every_time(store: ArtifactStore) -> None:
    assert store.conditional_writes() is True
    assert store.conditional_writes() is True
    assert store.put_if_absent("runs/a.json", b"{}") is True


BAD_KEYS = [
    "",
    "/x",
    "../x",
    "a/../b",
    "a//b",
    "a/",
    ".hidden",
    "a/.x",
    "a\0b",
    "a\nb",
    "é",
    "x" * 256,
    "x/" * 256 + "x",
]


def test_a_key_that_is_no_plain_name_is_refused(store: ArtifactStore, tmp_path: Path) -> None:
    source = tmp_path / "film.mp4"
    source.write_bytes(b"x")
    acts: list[Callable[[str], object]] = [
        lambda key: store.put_bytes(key, b""),
        lambda key: store.put_file(key, source),
        lambda key: store.put_if_absent(key, b""),
        lambda key: store.read_bytes(key, limit_bytes=1),
        store.open,
        store.locate,
    ]

    for key in BAD_KEYS:
        for act in acts:
            with pytest.raises(StorageAddressError):
                act(key)

    assert list(store.list("")) == []


@pytest.mark.parametrize("prefix", ["..", "../", "/etc", "runs/../..", ".x"])
def test_a_listing_stays_in_the_store(store: ArtifactStore, prefix: str) -> None:
    with pytest.raises(StorageAddressError):
        list(store.list(prefix))


def test_a_listing_is_in_order_of_whole_keys_and_honours_a_partial_prefix(store: ArtifactStore) -> None:
    keys = ["runs/a.txt", "runs/a/1", "runs/a/2", "runs/ab/1", "runs/b/1", "sweeps/a/1"]
    for key in reversed(keys):
        store.put_bytes(key, b"")

    assert list(store.list("")) == sorted(keys)
    assert list(store.list("runs/a")) == ["runs/a.txt", "runs/a/1", "runs/a/2", "runs/ab/1"]
    assert list(store.list("runs/a/")) == ["runs/a/1", "runs/a/2"]
    assert list(store.list("nothing/")) == []


def test_folders_are_told_once_whatever_they_hold(store: ArtifactStore) -> None:
    for run in ("aa", "ab", "abc", "b"):
        for name in ("1/manifest.json", "1/attempts/1/video.mp4", "2/manifest.json"):
            store.put_bytes(f"runs/{run}/{name}", b"")
    store.put_bytes("runs/abd", b"no folder")
    for number in range(9):
        store.put_bytes(f"sweeps/sweep-{number}/sweep.json", b"")

    assert list(store.folders("runs/a")) == ["runs/aa", "runs/ab", "runs/abc"]
    assert list(store.folders("runs/ab")) == ["runs/ab", "runs/abc"]
    assert list(store.folders("runs/")) == ["runs/aa", "runs/ab", "runs/abc", "runs/b"]
    assert list(store.folders("runs/aa/")) == ["runs/aa/1", "runs/aa/2"]
    assert list(store.folders("runs/c")) == list(store.folders("nothing/x")) == []
    assert len(list(store.folders("sweeps/sweep-"))) == 9
    with pytest.raises(StorageAddressError):
        list(store.folders("../x"))


def test_names_that_are_no_keys_are_told_apart(
    store: ArtifactStore, put_oddly: Callable[[str], None]
) -> None:
    store.put_bytes("runs/a/1/manifest.json", b"{}")
    for name in ("runs/copy of a/1/manifest.json", "runs/a/1 (2)/manifest.json", "runs/.hidden/x", "runs/.y"):
        put_oddly(name)

    keys, names = list(store.list("runs/")), list(store.names("runs/"))

    assert keys == ["runs/a/1/manifest.json"]
    assert {shortest_odd(name) for name in names} == {None, "runs/copy of a", "runs/a/1 (2)"}
    assert list(store.names("runs/b")) == []


def test_a_listing_of_several_pages_is_whole(store: ArtifactStore) -> None:
    keys = [f"runs/{number:02}/manifest.json" for number in range(23)]
    for key in keys:
        store.put_bytes(key, b"{}")

    assert list(store.list("runs/")) == keys


def test_the_longest_key_is_kept_and_listed(store: ArtifactStore) -> None:
    key = "runs/" + "/".join(["x" * 120] * 4) + "/" + "y" * 23
    assert len(key) == 512

    store.put_bytes(key, b"1")

    assert store.read_bytes(key, limit_bytes=1) == b"1"
    assert list(store.list("runs/")) == [key]


def test_the_address_of_a_store_opens_the_same_store(store: ArtifactStore) -> None:
    store.put_bytes("runs/a.json", b"{}")

    again = open_store(store.url)

    assert again.url == store.url
    assert again.read_bytes("runs/a.json", limit_bytes=2) == b"{}"
