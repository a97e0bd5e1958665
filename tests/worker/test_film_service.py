"""`GET /outputs/{name}`: films whole and in ranges, and nothing else of the machine."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

FILM = bytes(range(256)) * 1000


@pytest.fixture
def http(engine_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=engine_url, timeout=30, trust_env=False) as client:
        yield client


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The engine's output root, with one film."""
    (tmp_path / "engine" / "fox").mkdir(parents=True)
    (tmp_path / "engine" / "fox" / "take 1.mp4").write_bytes(FILM)
    return tmp_path / "engine"


@pytest.mark.usefixtures("root")
def test_a_film_is_served_whole_with_what_a_browser_needs(http: httpx.Client) -> None:
    whole, head = http.get("/outputs/fox/take%201.mp4"), http.head("/outputs/fox/take%201.mp4")

    assert (whole.status_code, whole.content) == (200, FILM)
    assert (head.status_code, head.content) == (200, b"")
    for answer in (whole, head):
        assert {
            name: answer.headers[name] for name in ("content-type", "content-length", "accept-ranges")
        } == {
            "content-type": "video/mp4",
            "content-length": str(len(FILM)),
            "accept-ranges": "bytes",
        }
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["etag"] == whole.headers["etag"]


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("asked", "status", "told", "content"),
    [
        ("bytes=0-9", 206, "bytes 0-9/256000", FILM[:10]),
        ("bytes=255990-", 206, "bytes 255990-255999/256000", FILM[-10:]),
        ("bytes=-5", 206, "bytes 255995-255999/256000", FILM[-5:]),
        ("bytes=100-999999", 206, "bytes 100-255999/256000", FILM[100:]),
        ("bytes=256000-", 416, "bytes */256000", None),
        ("bytes=9-1", 400, None, None),
    ],
)
def test_a_part_of_a_film_is_served_as_asked(
    http: httpx.Client, asked: str, status: int, told: str | None, content: bytes | None
) -> None:
    answer = http.get("/outputs/fox/take 1.mp4", headers={"Range": asked})

    assert (answer.status_code, answer.headers.get("content-range")) == (status, told)
    assert content is None or answer.content == content


def test_a_part_of_a_film_that_is_another_by_now_is_answered_with_the_whole(
    http: httpx.Client, root: Path
) -> None:
    path, part = "/outputs/fox/take 1.mp4", {"Range": "bytes=0-9"}
    tag = http.get(path, headers=part).headers["etag"]
    same = http.get(path, headers=part | {"If-Range": tag})

    (root / "fox" / "take 1.mp4").write_bytes(FILM + b"more")
    other = http.get(path, headers=part | {"If-Range": tag})

    assert (same.status_code, other.status_code) == (206, 200)
    assert other.content == FILM + b"more"


NO_FILMS = (
    *("gone.mp4", "fox", "fox/", "", "fox/notes.txt", "../secret.mp4", "%2e%2e/secret.mp4", "pipe.mp4"),
    *("..%2fsecret.mp4", "/etc/hostname", "%2fetc%2fhostname", "out/secret.mp4", "secret-link.mp4"),
    *("log-link.mp4", "spool/r-1/video.mp4", ".hidden/a.mp4", "references/a.mp4", "fox%00.mp4", "loop.mp4"),
    *("folder.mp4", "engine-x.log/video.mp4", "x" * 300 + ".mp4"),
)


def test_nothing_but_films_is_served(http: httpx.Client, root: Path) -> None:
    for name in ("spool/r-1/video.mp4", ".hidden/a.mp4", "references/a.mp4", "../secret.mp4", "engine-x.log"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"a film of somebody else")
    (root / "fox" / "notes.txt").write_bytes(b"a film of somebody else")
    (root / "folder.mp4").mkdir()
    (root / "out").symlink_to(root.parent)
    (root / "secret-link.mp4").symlink_to(root.parent / "secret.mp4")
    (root / "log-link.mp4").symlink_to(root / "engine-x.log")
    (root / "loop.mp4").symlink_to(root / "loop.mp4")
    os.mkfifo(root / "pipe.mp4")
    url = str(http.base_url).rstrip("/")

    answers = {path: http.send(httpx.Request("GET", f"{url}/outputs/{path}")) for path in NO_FILMS}

    for path, answer in answers.items():
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "invalid_request"), path


@pytest.mark.usefixtures("root")
def test_only_who_may_ask_anything_may_have_a_film(http: httpx.Client) -> None:
    path = "/outputs/fox/take 1.mp4"

    assert http.get(path, headers={"Origin": "https://example.test"}).status_code == 403
    assert http.get(path, headers={"Host": "example.test"}).status_code == 403
    assert http.post(path).status_code == 405
