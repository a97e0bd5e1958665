"""Links: what is followed, what never is, and that no slow, large or lying server gains anything."""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from own_links import Answer, LinkServer, raw, whole

from queue_schemas.errors import ErrorCode
from queue_schemas.references import shown_source
from storage.addresses import is_public
from storage.errors import LinkError, LinkRefusedError, LinkUnreachableError
from storage.links import DEFAULT_RULES, FetchedLink, LinkRules, check_link, fetch_link

CAT = os.urandom(700_000)


@pytest.fixture
def fetch(link_server: LinkServer, link_rules: LinkRules, tmp_path: Path) -> Callable[..., FetchedLink]:
    """Fetch a path of the server to `tmp_path / "file"`."""

    def run(path: str, *, limit_bytes: int = 1_000_000, **changes: object) -> FetchedLink:
        rules = replace(link_rules, **changes)
        return fetch_link(link_server.link(path), to=tmp_path / "file", limit_bytes=limit_bytes, rules=rules)

    return run


@pytest.mark.parametrize(
    "answer",
    [
        whole(CAT),
        raw(b"HTTP/1.1 200 OK\r\n\r\n" + CAT),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(CAT), CAT)),
    ],
)
def test_a_file_is_written_and_hashed_however_its_length_is_told(
    link_server: LinkServer, fetch: Callable[..., FetchedLink], tmp_path: Path, answer: Answer
) -> None:
    link_server.answers["/cat.png"] = answer

    found = fetch("/cat.png?signature=secret")

    assert (tmp_path / "file").read_bytes() == CAT
    assert found == FetchedLink(sha256=hashlib.sha256(CAT).hexdigest(), size_bytes=len(CAT))


def test_a_request_says_nothing_but_what_it_wants(
    link_server: LinkServer,
    fetch: Callable[..., FetchedLink],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / ".netrc").write_text("machine localhost login me password secret\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")  # nothing listens there
    link_server.answers["/a%20cat%C3%A9.png"] = whole(b"meow")

    fetch("/a caté.png?x=1#part")

    assert link_server.heads[0].split("\r\n") == [
        "GET /a%20cat%C3%A9.png?x=1 HTTP/1.1",
        f"Host: localhost:{link_server.port}",
        "Accept: */*",
        "Accept-Encoding: identity",
        "User-Agent: h3",
        "Connection: close",
        "",
        "",
    ]


@pytest.mark.parametrize(
    "location", ["/b?token=secret", "//localhost:{port}/b", "https://localhost:{port}/b"]
)
def test_a_redirect_is_followed(
    link_server: LinkServer, fetch: Callable[..., FetchedLink], tmp_path: Path, location: str
) -> None:
    link_server.answers["/a"] = whole(
        b"", status="302 Found", Location=location.format(port=link_server.port)
    )
    link_server.answers["/b"] = whole(b"meow")

    fetch("/a")

    assert (tmp_path / "file").read_bytes() == b"meow"


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (whole(b"", status="404 Not Found"), LinkRefusedError, "answered HTTP 404"),
        (whole(b"", status="206 Partial Content"), LinkRefusedError, "answered HTTP 206"),
        (whole(b"", status="503 Busy"), LinkUnreachableError, "answered HTTP 503"),
        (whole(b"", status="429 Slow down"), LinkUnreachableError, "answered HTTP 429"),
        (whole(CAT, Content_Encoding="gzip"), LinkRefusedError, "compressed"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nmeow"), LinkUnreachableError, "broke off"),
        (raw(b"HTTP/1.1 200 OK\r\n\r\nmeow", ends=False), LinkUnreachableError, "broke off"),
        (
            raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nmeow"),
            LinkUnreachableError,
            "broke off",
        ),
        (raw(b"SSH-2.0-OpenSSH\r\n"), LinkUnreachableError, "no HTTP"),
        (raw(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500 + b"\r\n"), LinkUnreachableError, "no HTTP"),
        (whole(b"x" * 1_000_001), LinkRefusedError, "larger than the 1,000,000 bytes"),
        (raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_001), LinkRefusedError, "larger than the 1,000,000"),
        (whole(b"", status="302 Found", Location="/cat.png"), LinkRefusedError, "more than 5 times"),
        (whole(b"", status="302 Found"), LinkRefusedError, "redirects to nowhere"),
        (whole(b"", status="302 Found", Location="http://localhost/"), LinkRefusedError, "no https link"),
        (whole(b"", status="302 Found", Location="file:///etc/passwd"), LinkRefusedError, "no https link"),
        (whole(b"", status="302 Found", Location="https://me:pw@localhost/"), LinkRefusedError, "password"),
        (whole(b"", status="302 Found", Location="https://10.0.0.5/"), LinkRefusedError, "not public"),
        (whole(b"", status="302 Found", Location="https://[::ffff:7f00:1]/"), LinkRefusedError, "not public"),
        (whole(b"", status="302 Found", Location="https://2130706434/"), LinkRefusedError, "not public"),
        (whole(b"", status="302 Found", Location="https://a b/"), LinkRefusedError, "names no host"),
    ],
)
def test_what_is_not_read_to_its_end_leaves_nothing_and_says_why(
    *,
    link_server: LinkServer,
    fetch: Callable[..., FetchedLink],
    tmp_path: Path,
    answer: Answer,
    error: type[LinkError],
    says: str,
) -> None:
    link_server.answers["/cat.png"] = answer

    with pytest.raises(error, match=says) as caught:
        fetch("/cat.png?signature=secret")

    assert "secret" not in str(caught.value)
    assert "pw" not in str(caught.value)
    assert caught.value.code is ErrorCode.REFERENCE_UNREADABLE
    assert caught.value.retryable is (error is LinkUnreachableError)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    ("times", "path"),
    [
        ({"read_seconds": 0.1}, "/silent"),
        ({"total_seconds": 0.3}, "/drip"),
        ({"total_seconds": 0.3}, "/body"),
    ],
)
def test_a_server_that_is_silent_or_drips_gains_no_time(
    link_server: LinkServer, fetch: Callable[..., FetchedLink], times: dict[str, float], path: str
) -> None:
    def drip(head: bytes, drop: bytes) -> Answer:
        def answer(caller: object) -> None:
            caller.sendall(head)
            while drop:
                caller.sendall(drop)
                time.sleep(0.02)
            caller.recv(1)  # until the other side leaves

        return answer

    link_server.answers |= {
        "/silent": drip(b"", b""),
        "/drip": drip(b"HTTP/1.1 200 OK\r\nx: ", b"y"),
        "/body": drip(b"HTTP/1.1 200 OK\r\n\r\n", b"y"),
    }
    started = time.monotonic()

    with pytest.raises(LinkUnreachableError, match="too long"):
        fetch(path, **times)

    assert time.monotonic() - started < 2.0


def test_a_machine_of_ones_own_is_not_reached_whatever_its_name(
    link_server: LinkServer, link_rules: LinkRules, tmp_path: Path
) -> None:
    rules = replace(link_rules, also_allowed=frozenset())
    for host in ("localhost", "127.0.0.1", "127.1", "0x7f000001"):
        with pytest.raises(LinkRefusedError, match="not public"):
            fetch_link(link_server.link("/", host=host), to=tmp_path / "file", limit_bytes=9, rules=rules)

    assert link_server.heads == []


def test_a_name_is_resolved_once_and_what_was_looked_at_is_connected_to(
    link_server: LinkServer, link_rules: LinkRules, tmp_path: Path
) -> None:
    link_server.answers["/cat.png"] = whole(b"meow")
    asked: list[str] = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.5"]

    link = link_server.link("/cat.png", host="films.example")
    fetch_link(link, to=tmp_path / "file", limit_bytes=9, rules=replace(link_rules, resolve=rebinding))

    assert asked == ["films.example"]
    mixed = replace(link_rules, resolve=lambda host, port: ["127.0.0.1", "10.0.0.5"])
    with pytest.raises(LinkRefusedError, match="not public"):
        fetch_link(link, to=tmp_path / "other", limit_bytes=9, rules=mixed)


def test_a_server_whose_authority_or_name_is_another_is_not_trusted(
    link_server: LinkServer, link_rules: LinkRules, tmp_path: Path
) -> None:
    link_server.answers["/"] = whole(b"meow")
    foreign = link_server.link("/", host="films.test")
    rules = replace(link_rules, resolve=lambda host, port: ["127.0.0.1"])

    for link, given in ((link_server.link("/"), replace(rules, ca_file=None)), (foreign, rules)):
        with pytest.raises(LinkUnreachableError, match="certificate"):
            fetch_link(link, to=tmp_path / "file", limit_bytes=9, rules=given)


def test_a_file_that_cannot_be_written_is_the_callers_own_error(
    link_server: LinkServer, fetch: Callable[..., FetchedLink], tmp_path: Path
) -> None:
    link_server.answers["/"] = whole(b"meow")
    (tmp_path / "file").write_bytes(b"mine")

    with pytest.raises(FileExistsError):
        fetch("/")

    assert (tmp_path / "file").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("http://example.com/cat.png", "no https link"),
        ("https://me@example.com/cat.png", "user or password"),
        ("https:///cat.png", "names no host"),
        ("https://example.com:99999/", "cannot be read as a link"),
        ("https://[::1", "cannot be read as a link"),
        (f"https://{'a' * 64}.example/", "cannot be read as a link"),
        ("https://me:not/secret@example.com/", "https://… cannot be read as a link"),
        ("https://me:secret?@example.com/", "https://… cannot be read as a link"),
    ],
)
def test_a_link_that_is_none_is_refused_as_it_is_written(link: str, says: str) -> None:
    with pytest.raises(LinkRefusedError, match=says) as caught:
        check_link(link)
    for shown in (shown_source(link), str(caught.value)):
        assert "me@" not in shown
        assert "secret" not in shown


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "169.254.169.254"),
        *("168.63.129.16", "172.16.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1"),
        *("198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "example.com", ""),
        *("::", "::1", "::7f00:1", "::ffff:10.0.0.5", "::ffff:8.8.8.8", "64:ff9b::808:808"),
        *("64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:a00:1::1", "3fff::1", "5f00::1"),
        *("fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1"),
    ],
)
def test_an_address_that_is_not_of_the_public_internet_is_told(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "99.255.255.255", "2606:4700::1111", "2a00:1450::1"])
def test_an_address_of_the_public_internet_is_one(address: str) -> None:
    assert is_public(address)


def test_only_tests_reach_machines_that_are_not_public() -> None:
    assert (DEFAULT_RULES.also_allowed, DEFAULT_RULES.ca_file) == (frozenset(), None)
