"""What is S3's alone: names in the bucket, parts, links, threads and forks."""

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from storage.errors import StorageUnavailableError
from storage.s3 import LINK_SECONDS, PART_BYTES, SINGLE_PUT_BYTES, S3Store
from storage.s3_address import parse_s3_address
from storage.uri import open_store

if TYPE_CHECKING:
    from tests.storage.conftest import S3Server

FORK_AND_GO_ON = """
import os, sys
from storage.uri import open_store
store = open_store(sys.argv[1])
store.put_bytes("parent.txt", b"parent")

def use(name):
    for number in range(10):
        content = f"{name} {number}".encode()
        store.put_bytes(f"{name}/{number}.txt", content)
        assert store.read_bytes(f"{name}/{number}.txt", limit_bytes=100) == content

children = []
for name in "abc":
    child = os.fork()
    if child == 0:
        use(name)
        os._exit(0)
    children.append(child)
use("parent")
print([os.waitpid(child, 0)[1] for child in children])
"""


@pytest.fixture
def store(s3_url: str) -> S3Store:
    return S3Store(parse_s3_address(s3_url))


def head(client: Any, store: S3Store, key: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.head_object(Bucket=store.address.bucket, Key=f"films/{key}")
    return answer


@pytest.mark.parametrize(
    ("key", "content_type"),
    [
        ("runs/a/video.mp4", "video/mp4"),
        ("runs/a/manifest.json", "application/json"),
        ("runs/a/poster.jpg", "image/jpeg"),
        ("runs/a/latents", "application/octet-stream"),
    ],
)
def test_an_object_lies_below_the_prefix_with_its_type_and_hash(
    store: S3Store, s3_client: Any, key: str, content_type: str
) -> None:
    store.put_bytes(key, b"content")

    found = head(s3_client, store, key)
    assert found["ContentType"] == content_type
    assert found["Metadata"] == {"sha256": hashlib.sha256(b"content").hexdigest()}


def test_a_large_file_goes_up_in_parts_of_one_length(
    store: S3Store, s3_client: Any, s3_server: "S3Server", tmp_path: Path
) -> None:
    source = tmp_path / "film.mp4"
    with source.open("wb") as sink:  # a hole with a mark in each part, so that a wrong order shows
        for number in range(SINGLE_PUT_BYTES // PART_BYTES + 1):
            sink.seek(number * PART_BYTES)
            sink.write(b"part %d" % number)
        sink.truncate(SINGLE_PUT_BYTES + 5)

    written = store.put_file("runs/a/video.mp4", source)

    parts = [
        r for r in s3_server.requests() if store.address.bucket in r["path"] and "partNumber" in r["query"]
    ]
    lengths = [int(request["headers"]["content-length"]) for request in parts]
    assert lengths == [PART_BYTES] * (SINGLE_PUT_BYTES // PART_BYTES) + [5]
    with store.open("runs/a/video.mp4") as stream, source.open("rb") as expected:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        assert digest == hashlib.file_digest(expected, "sha256").hexdigest() == written.sha256
    found = head(s3_client, store, "runs/a/video.mp4")
    assert found["ContentType"] == "video/mp4"
    assert found["Metadata"] == {"sha256": written.sha256}
    assert store.remove_abandoned(older_than_seconds=0) == 0


def test_uploads_that_never_ended_are_removed_when_they_are_old(store: S3Store, s3_client: Any) -> None:
    for key in ("films/runs/a/video.mp4", "films/backup/of/others.tar", "others/video.mp4"):
        s3_client.create_multipart_upload(Bucket=store.address.bucket, Key=key)

    # moto says of every upload that it began in 2010.
    assert store.remove_abandoned(older_than_seconds=100 * 365 * 86_400) == 0
    assert store.remove_abandoned(older_than_seconds=3600) == 1
    left = s3_client.list_multipart_uploads(Bucket=store.address.bucket)["Uploads"]
    assert [upload["Key"] for upload in left] == ["films/backup/of/others.tar", "others/video.mp4"]


def test_two_prefixes_of_a_bucket_are_two_stores(store: S3Store, s3_client: Any) -> None:
    bucket, endpoint = store.address.bucket, store.address.endpoint
    other = open_store(f"s3://{bucket}/films-of-others?endpoint={endpoint}")
    whole = open_store(f"s3://{bucket}?endpoint={endpoint}")
    store.put_bytes("runs/a.json", b"1")
    other.put_bytes("runs/b.json", b"2")
    for foreign in ("films/runs/", "films/runs/a copy.json", "films/.hidden", "films/a//b"):
        s3_client.put_object(Bucket=bucket, Key=foreign, Body=b"")

    assert list(store.list("")) == ["runs/a.json"]
    assert list(other.list("")) == ["runs/b.json"]
    assert list(whole.list("")) == ["films-of-others/runs/b.json", "films/runs/a.json"]


@pytest.mark.parametrize(
    ("key", "content_type"), [("a/video.mp4", "video/mp4"), ("a/record.json", "application/json")]
)
def test_a_link_opens_the_artifact_without_credentials_for_seven_days(
    store: S3Store, key: str, content_type: str
) -> None:
    store.put_bytes(key, b"content")

    link = store.locate(key)

    answer = httpx.get(link, trust_env=False)
    assert (answer.status_code, answer.content) == (200, b"content")
    assert answer.headers["content-type"] == content_type
    query = parse_qs(urlsplit(link).query)
    assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert query["X-Amz-Expires"] == [str(LINK_SECONDS)] == ["604800"]


def test_a_link_is_signed_for_the_host_that_its_reader_reaches(aws: object) -> None:
    address = "s3://bucket/films?endpoint=http://minio:9000&public_endpoint=https://films.example.org"
    virtual = f"{address}&addressing=virtual&region=auto"

    assert open_store(address).locate("a.mp4").startswith("https://films.example.org/bucket/films/a.mp4?")
    assert open_store(virtual).locate("a.mp4").startswith("https://bucket.films.example.org/films/a.mp4?")
    assert "%2Fauto%2Fs3%2Faws4_request" in open_store(virtual).locate("a.mp4")


def test_a_link_of_aws_itself_is_of_the_current_form(aws: object) -> None:
    link = open_store("s3://bucket/films?region=eu-central-1").locate("a.mp4")

    assert link.startswith("https://bucket.s3.eu-central-1.amazonaws.com/films/a.mp4?")
    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in link


def test_the_address_alone_says_where_the_store_is(aws: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://elsewhere.example.org")

    assert urlsplit(open_store("s3://bucket?region=eu-central-1").locate("a")).hostname == (
        "bucket.s3.eu-central-1.amazonaws.com"
    )


def test_many_threads_share_a_store(store: S3Store) -> None:
    def use(number: int) -> bytes | None:
        store.put_bytes(f"runs/{number}.json", b"%d" % number)
        return store.read_bytes(f"runs/{number}.json", limit_bytes=10)

    with ThreadPoolExecutor(max_workers=8) as pool:
        contents = list(pool.map(use, range(40)))

    assert contents == [b"%d" % number for number in range(40)]


def test_forked_processes_go_on_with_their_parents_store(store: S3Store) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK_AND_GO_ON, store.url], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[0, 0, 0]\n"
    assert len(list(store.list(""))) == 41


def test_a_file_that_changes_while_it_is_stored_is_an_error(
    store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "film.mp4"
    source.write_bytes(b"first")
    put = S3Store._put

    def put_and_change(self: S3Store, *arguments: Any, **options: Any) -> None:
        put(self, *arguments, **options)
        os.truncate(source, 3)

    monkeypatch.setattr(S3Store, "_put", put_and_change)

    with pytest.raises(StorageUnavailableError, match=r"film\.mp4 changed while it was being stored"):
        store.put_file("runs/a/video.mp4", source)


def test_a_bucket_that_is_not_there_is_said_to_be_missing(store: S3Store, tmp_path: Path) -> None:
    missing = open_store(f"s3://no-such-bucket/films?endpoint={store.address.endpoint}")
    (tmp_path / "film.mp4").write_bytes(b"film")
    acts = [
        lambda: missing.put_bytes("a", b""),
        lambda: missing.put_file("a", tmp_path / "film.mp4"),
        lambda: missing.put_if_absent("a", b""),
        lambda: missing.read_bytes("a", limit_bytes=1),
        lambda: list(missing.list("")),
        missing.conditional_writes,
    ]

    for act in acts:
        with pytest.raises(StorageUnavailableError, match="there is no such bucket: create it") as caught:
            act()
        assert missing.url in str(caught.value)
