"""What a service may do that moto never does: refuse, forget an answer, break off, alter, be no S3 at all.

The service here is a real HTTP server that answers as each test says.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from pathlib import Path

import pytest

from storage import s3
from storage.base import ArtifactStore
from storage.errors import StorageUnavailableError
from storage.s3 import PART_BYTES, SINGLE_PUT_BYTES, S3Store
from storage.s3_address import S3Address
from storage.uri import open_store

pytestmark = pytest.mark.usefixtures("aws")


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    line: str
    """`METHOD /path?query`."""
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    """A status, and a body: an S3 error of that code unless something else is given."""

    status: int
    code: str = ""
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    declared_bytes: int | None = None
    """A length that the body then does not have."""
    headers_from: Callable[[list[Asked]], Mapping[str, str]] = lambda asked: {}
    """Further headers, from what was asked so far."""

    def content(self) -> bytes:
        if self.body is not None:
            return self.body
        message = "AKIAFORTESTSONLY sent this"
        return f"<Error><Code>{self.code}</Code><Message>{message}</Message></Error>".encode()


WRITTEN = Answer(200, body=b"", headers={"ETag": '"1"'})
MISSING = Answer(404)


@contextmanager
def answering(*answers: Answer) -> Iterator[tuple[str, list[Asked]]]:
    """Yield an endpoint and what it is asked; the last answer is given for ever."""
    asked: list[Asked] = []
    queue = chain(answers, repeat(answers[-1]))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            names = {name.lower(): value for name, value in self.headers.items()}
            asked.append(Asked(f"{self.command} {self.path}", names))
            answer = next(queue)
            content = answer.content()
            self.send_response(answer.status)
            for name, value in {**answer.headers, **answer.headers_from(asked)}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(answer.declared_bytes or len(content)))
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)
            self.close_connection = True

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

        def log_message(self, format: str, *values: object) -> None:
            """Say nothing on the test's standard error."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def store_at(endpoint: str, *, attempts: int = 1) -> S3Store:
    return S3Store(S3Address(bucket="bucket", prefix="films", endpoint=endpoint), attempts=attempts)


def lines(asked: list[Asked]) -> list[str]:
    return [request.line for request in asked]


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (Answer(403, "AccessDenied"), "need s3:GetObject, s3:PutObject"),
        (Answer(403, "InvalidAccessKeyId"), "does not accept these credentials: check AWS_ACCESS_KEY_ID"),
        (Answer(403, "SignatureDoesNotMatch"), "does not accept these credentials"),
        (Answer(401, "Unauthorized"), "does not accept these credentials"),
        (Answer(400, "ExpiredToken"), "have expired: log in again"),
        (Answer(403, "RequestTimeTooSkewed"), "this machine's clock"),
        (Answer(404, "NoSuchBucket"), "there is no such bucket: create it"),
        (Answer(400, "AuthorizationHeaderMalformed"), r"add region=\.\.\. to the address"),
        (Answer(507, "InsufficientStorage"), "the bucket is full"),
        (Answer(503, "SlowDown"), "overloaded or broken"),
        (Answer(500, "InternalError"), "overloaded or broken"),
        (Answer(418, "Tea<b>pot"), r"the service answered \w+ \(HTTP 418\)"),
        (Answer(405, body=b"<html>no</html>"), "no S3 service"),
        (Answer(200, body=b"<html>welcome</html>"), "no S3 service"),
    ],
)
def test_what_the_service_says_becomes_one_sentence_without_secrets(answer: Answer, remedy: str) -> None:
    with answering(answer) as (endpoint, _):
        store = store_at(endpoint)
        with pytest.raises(StorageUnavailableError, match=remedy) as caught:
            store.put_bytes("runs/a.json", b"{}")

    message = str(caught.value)
    assert store.url in message
    assert "\n" not in message
    assert "AKIA" not in message
    assert "a-secret-that-no-message-may-show" not in message
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("act", ["list", "read", "open", "probe", "create", "clean", "file"])
def test_every_verb_explains_what_it_is_refused(act: str, tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(b"film")
    acts: Mapping[str, Callable[[ArtifactStore], object]] = {
        "list": lambda store: list(store.list("runs/")),
        "read": lambda store: store.read_bytes("a", limit_bytes=1),
        "open": lambda store: store.open("a"),
        "probe": lambda store: store.conditional_writes(),
        "create": lambda store: store.put_if_absent("a", b""),
        "clean": lambda store: store.remove_abandoned(older_than_seconds=0),
        "file": lambda store: store.put_file("a", tmp_path / "film.mp4"),
    }

    with (
        answering(Answer(403, "AccessDenied")) as (endpoint, _),
        pytest.raises(StorageUnavailableError, match="access is denied"),
    ):
        acts[act](store_at(endpoint))


def test_a_service_that_is_not_there_is_named_with_a_remedy(free_port: int) -> None:
    store = store_at(f"http://127.0.0.1:{free_port}")

    with pytest.raises(StorageUnavailableError, match="cannot be reached or does not answer") as caught:
        store.put_bytes("a", b"")

    assert f"endpoint=http://127.0.0.1:{free_port}" in str(caught.value)


def test_missing_credentials_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    for act in (lambda s: s.put_bytes("a", b""), lambda s: s.locate("a"), lambda s: list(s.list(""))):
        with pytest.raises(StorageUnavailableError, match="no usable credentials were found"):
            act(store_at("http://127.0.0.1:1"))


def test_a_profile_that_does_not_exist_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    with pytest.raises(StorageUnavailableError, match="no usable credentials were found"):
        store_at("http://127.0.0.1:1").locate("a")


def test_a_store_shows_its_address_and_no_secret() -> None:
    store = open_store("s3://bucket/films?endpoint=https://host")

    assert repr(store) == "S3Store('s3://bucket/films?endpoint=https://host')"


def test_a_request_is_sent_again_when_the_service_stumbles() -> None:
    with answering(Answer(503, "SlowDown"), WRITTEN) as (endpoint, asked):
        store_at(endpoint, attempts=2).put_bytes("a.json", b"{}")

    assert lines(asked) == ["PUT /bucket/films/a.json"] * 2


def test_requests_are_not_repeated_for_ever() -> None:
    with answering(Answer(503, "SlowDown")) as (endpoint, asked), pytest.raises(StorageUnavailableError):
        store_at(endpoint, attempts=2).put_bytes("a.json", b"{}")

    assert len(asked) == 2


def test_a_name_whose_answer_was_lost_is_still_the_writers_own() -> None:
    def writer(asked: list[Asked]) -> dict[str, str]:
        return {"x-amz-meta-writer": asked[1].headers["x-amz-meta-writer"]}

    own = Answer(200, body=b"{}", headers_from=writer)
    with answering(MISSING, Answer(500, "InternalError"), Answer(412, "PreconditionFailed"), own) as (
        at,
        asked,
    ):
        created = store_at(at, attempts=2).put_if_absent("a.json", b"{}")

    assert created is True
    assert [line.partition(" ")[0] for line in lines(asked)] == ["HEAD", "PUT", "PUT", "HEAD"]
    assert asked[1].headers["if-none-match"] == "*"


def test_a_name_that_another_writer_took_meanwhile_is_theirs() -> None:
    theirs = Answer(200, body=b"{}", headers={"x-amz-meta-writer": "0123456789abcdef"})
    with answering(MISSING, Answer(412, "PreconditionFailed"), theirs) as (endpoint, _):
        assert store_at(endpoint).put_if_absent("a.json", b"{}") is False


def test_a_conflict_is_no_answer_until_a_writer_has_won(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_CONFLICT_SECONDS", (0.0,))
    conflict = Answer(409, "ConditionalRequestConflict")

    with answering(MISSING, conflict, MISSING, WRITTEN) as (endpoint, _):
        assert store_at(endpoint).put_if_absent("a.json", b"{}") is True
    with answering(MISSING, conflict, Answer(200, body=b"{}")) as (endpoint, _):
        assert store_at(endpoint).put_if_absent("a.json", b"{}") is False
    with (
        answering(MISSING, conflict, MISSING, conflict, MISSING) as (endpoint, _),
        pytest.raises(StorageUnavailableError, match="other writers keep interfering"),
    ):
        store_at(endpoint).put_if_absent("a.json", b"{}")


def test_who_may_write_and_not_list_can_still_create() -> None:
    with answering(Answer(403), WRITTEN) as (endpoint, _):
        assert store_at(endpoint).put_if_absent("a.json", b"{}") is True


def test_a_service_that_ignores_the_condition_is_found_out() -> None:
    with answering(WRITTEN) as (endpoint, asked):
        assert store_at(endpoint).conditional_writes() is False

    assert lines(asked) == ["PUT /bucket/films/probe.txt"] * 2


@pytest.mark.parametrize("refusal", [Answer(501, "NotImplemented"), Answer(400, "InvalidArgument")])
def test_a_service_that_refuses_the_condition_is_written_to_without(refusal: Answer) -> None:
    with answering(refusal, WRITTEN) as (endpoint, _):
        assert store_at(endpoint).conditional_writes() is False
    with answering(MISSING, refusal, WRITTEN) as (endpoint, asked):
        assert store_at(endpoint).put_if_absent("a.json", b"{}") is True
        assert "if-none-match" not in asked[-1].headers
    with answering(Answer(200, body=b"{}")) as (endpoint, asked):
        assert store_at(endpoint).put_if_absent("a.json", b"{}") is False
        assert lines(asked) == ["HEAD /bucket/films/a.json"]


def test_a_probe_that_fails_for_another_reason_is_an_error() -> None:
    with (
        answering(Answer(400, "InvalidArgument")) as (endpoint, _),
        pytest.raises(StorageUnavailableError, match="the service answered InvalidArgument"),
    ):
        store_at(endpoint).conditional_writes()


def test_a_download_that_breaks_off_is_the_stores_error() -> None:
    broken = Answer(200, body=b"x" * 1000, declared_bytes=2000, headers={"ETag": '"1"'})
    with answering(broken) as (endpoint, _):
        with pytest.raises(StorageUnavailableError, match="broke off"):
            store_at(endpoint).read_bytes("a", limit_bytes=5000)
        with (
            store_at(endpoint).open("a") as stream,
            pytest.raises(StorageUnavailableError, match="broke off"),
        ):
            stream.read()


@pytest.mark.parametrize(
    "told",
    [
        Answer(200, body=b"filn", headers={"x-amz-meta-sha256": sha256(b"filn").hexdigest()}),
        Answer(200, body=b"film and trailer", headers={"x-amz-meta-sha256": sha256(b"film").hexdigest()}),
        Answer(200, body=b"film"),
        MISSING,
    ],
)
def test_an_upload_that_the_service_altered_or_lost_is_an_error(told: Answer, tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(b"film")

    with (
        answering(WRITTEN, told) as (endpoint, _),
        pytest.raises(StorageUnavailableError, match="is not what was written"),
    ):
        store_at(endpoint).put_file("a.mp4", tmp_path / "film.mp4")


def test_an_upload_is_believed_when_size_and_hash_come_back(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").write_bytes(b"film")
    told = Answer(200, body=b"film", headers={"X-Amz-Meta-Sha256": sha256(b"film").hexdigest()})

    with answering(WRITTEN, told) as (endpoint, _):
        written = store_at(endpoint).put_file("a.mp4", tmp_path / "film.mp4")

    assert (written.size_bytes, written.sha256) == (4, sha256(b"film").hexdigest())


STARTED = Answer(200, body=b"<R><UploadId>u1</UploadId></R>")


def test_parts_that_fail_are_taken_back(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").touch()
    os.truncate(tmp_path / "film.mp4", SINGLE_PUT_BYTES + 1)

    denied, gone = Answer(403, "AccessDenied"), Answer(204, body=b"")
    with (
        answering(STARTED, WRITTEN, denied, gone) as (endpoint, asked),
        pytest.raises(StorageUnavailableError, match="access is denied"),
    ):
        store_at(endpoint).put_file("a.mp4", tmp_path / "film.mp4")

    assert lines(asked) == [
        "POST /bucket/films/a.mp4?uploads",
        "PUT /bucket/films/a.mp4?uploadId=u1&partNumber=1",
        "PUT /bucket/films/a.mp4?uploadId=u1&partNumber=2",
        "DELETE /bucket/films/a.mp4?uploadId=u1",
    ]


def test_parts_whose_completion_was_answered_into_the_void_count_when_they_are_there(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").touch()
    os.truncate(tmp_path / "film.mp4", SINGLE_PUT_BYTES + 1)
    digest = sha256((tmp_path / "film.mp4").read_bytes()).hexdigest()
    parts = [WRITTEN] * (SINGLE_PUT_BYTES // PART_BYTES + 1)
    there = Answer(200, declared_bytes=SINGLE_PUT_BYTES + 1, headers={"x-amz-meta-sha256": digest})

    with answering(STARTED, *parts, Answer(404, "NoSuchUpload"), there) as (endpoint, asked):
        store_at(endpoint).put_file("a.mp4", tmp_path / "film.mp4")

    assert lines(asked)[-2:] == ["POST /bucket/films/a.mp4?uploadId=u1", "HEAD /bucket/films/a.mp4"]
