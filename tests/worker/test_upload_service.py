"""`POST /references`: any sane picture, clip or sound goes in once; all else is refused for what it is."""

import hashlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import small_media

from queue_schemas import limits
from queue_schemas.results import StoredReference

MEDIA = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def http(engine_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine_url, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture
def kept(tmp_path: Path) -> Callable[[], list[str]]:
    """Names of what the engine keeps."""
    return lambda: sorted(path.name for path in (tmp_path / "engine").glob("references/*"))


def test_a_file_is_kept_by_its_content_and_told_by_what_it_is(
    http: httpx.Client, tmp_path: Path, kept: Callable[[], list[str]]
) -> None:
    files = {
        "image": small_media.picture(tmp_path / "fox.png"),
        "video": small_media.clip(tmp_path / "walk.mp4"),
        "audio": small_media.sound(tmp_path / "voice.wav"),
    }

    answers = {
        kind: http.post("/references", content=path.read_bytes(), headers=MEDIA)
        for kind, path in files.items()
    }

    told = {kind: StoredReference.model_validate_json(answer.content) for kind, answer in answers.items()}
    for kind, path in files.items():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert (answers[kind].status_code, told[kind].kind, told[kind].sha256) == (201, kind, digest)
        assert (told[kind].key, told[kind].size_bytes) == (
            f"references/{digest}{path.suffix}",
            path.stat().st_size,
        )
    assert (told["image"].width, told["image"].height, told["image"].form) == (64, 48, "a PNG picture")
    assert told["audio"].seconds == pytest.approx(2.0)
    assert kept() == sorted(told[kind].sha256 for kind in files)


def test_the_same_content_again_has_the_same_answer_and_is_kept_once(
    http: httpx.Client, tmp_path: Path, kept: Callable[[], list[str]]
) -> None:
    data = small_media.picture(tmp_path / "fox.png").read_bytes()

    first = http.post("/references", content=data, headers=MEDIA)
    again = http.post(
        "/references", content=iter([data[:50], data[50:]]), headers={"Content-Type": "image/png"}
    )

    assert (first.status_code, again.status_code) == (201, 200)
    assert (first.json(), len(kept())) == (again.json(), 1)


@pytest.mark.parametrize(
    ("content", "headers", "query", "status", "code", "says"),
    [
        (
            b"meow",
            {"Content-Type": "text/plain"},
            "",
            415,
            "invalid_request",
            "image/..., video/..., audio/...",
        ),
        (
            b"meow",
            {"Content-Type": "multipart/form-data"},
            "",
            415,
            "invalid_request",
            "send the file itself",
        ),
        (b"meow", MEDIA | {"Content-Encoding": "gzip"}, "", 415, "invalid_request", "Content-Encoding"),
        (b"meow", MEDIA, "?kind=film", 422, "invalid_request", "none of image, video, audio"),
        (b"meow", MEDIA, "", 422, "reference_unreadable", "text"),
        (b"", MEDIA, "", 422, "reference_unreadable", "the file: it is empty"),
        (b"%PDF-1.7", MEDIA, "?kind=image", 422, "reference_unreadable", "a PDF document"),
        (b"\x89PNG\r\n\x1a\nno more", MEDIA, "", 422, "reference_unreadable", "the file"),
    ],
)
def test_what_is_no_medium_is_refused_with_a_sentence_and_not_kept(
    *,
    http: httpx.Client,
    kept: Callable[[], list[str]],
    content: bytes,
    headers: dict[str, str],
    query: str,
    status: int,
    code: str,
    says: str,
) -> None:
    answer = http.post(f"/references{query}", content=content, headers=headers)

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert says in answer.json()["error"]["message"]
    assert kept() == []


def test_a_kind_that_the_file_is_not_is_refused(http: httpx.Client, tmp_path: Path) -> None:
    picture = small_media.picture(tmp_path / "fox.png").read_bytes()

    answer = http.post("/references?kind=audio", content=picture, headers=MEDIA)

    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "reference_unreadable")


def test_a_file_over_the_limit_is_refused_by_its_length_and_while_it_streams(
    http: httpx.Client, kept: Callable[[], list[str]]
) -> None:
    part, parts = bytes(1024 * 1024), limits.AUDIO_BYTES // 1024**2 + 1

    announced = http.post("/references", content=bytes(limits.VIDEO_BYTES + 1), headers=MEDIA)
    streamed = http.post("/references?kind=audio", content=(part for _ in range(parts)), headers=MEDIA)

    for answer, limit in ((announced, limits.VIDEO_BYTES), (streamed, limits.AUDIO_BYTES)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "invalid_request")
        assert f"{limit:,} bytes" in answer.json()["error"]["message"]
    assert kept() == []


def test_a_caller_that_leaves_in_the_middle_leaves_nothing(
    http: httpx.Client, kept: Callable[[], list[str]], eventually: Callable[..., None]
) -> None:
    head = (
        "POST /references HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 9\r\n\r\n"
    )
    with socket.create_connection((http.base_url.host, http.base_url.port)) as caller:
        caller.sendall(head.encode() + b"\x89PNG")
        eventually(lambda: len(kept()) == 1, what="the file is begun")
        assert kept()[0].startswith(".")

    eventually(lambda: kept() == [], what="its beginning is gone")


def test_a_folder_that_takes_nothing_is_a_clear_state(http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "references").write_bytes(b"in the way")
    picture = small_media.picture(tmp_path / "fox.png").read_bytes()

    answer = http.post("/references", content=picture, headers=MEDIA)

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_unavailable")
    assert answer.json()["error"]["retryable"]


def test_a_page_from_elsewhere_puts_nothing_in(http: httpx.Client) -> None:
    answer = http.post("/references", content=b"x", headers=MEDIA | {"Origin": "https://example.test"})

    assert answer.status_code == 403
