"""`fetch_link`: a file from an https link into a local file, by rules that a hostile link cannot bend.

The one piece of code by which client, puller and engine read a link. A host is resolved once, every address
that it has must be public, and the connection goes to one of those very addresses (a name that means another
machine a moment later reaches nothing); each redirect is looked at anew. Standard library only: no proxy, no
`.netrc`, no cookie and no decompression is involved. The query of a link is part of no message, since it may
be a signature. Knows no media: whoever asks says how many bytes it may have.
"""

import hashlib
import http.client
import io
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, urljoin, urlsplit

from queue_schemas.references import shown_source
from storage.addresses import is_public
from storage.errors import LinkRefusedError, LinkUnreachableError

_CHUNK_BYTES: Final = 256 * 1024
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_BUSY: Final = frozenset({408, 425, 429})
_HOST: Final = re.compile(r"[a-z0-9._:-]+")
"""Host and port; what looks otherwise may be a user and a part of a password."""
_URL_CHARACTERS: Final = "%/:@!$&'()*+,;=~-._?"
"""What stays as it is in a path or query; the rest is percent-encoded."""


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host as this machine knows them. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRules:
    """Limits of one fetch; the last three fields are for tests, which have no public machine."""

    connect_seconds: float = 10.0
    """For each address that is tried, and as long again for its TLS."""
    read_seconds: float = 30.0
    """Longest silence of the other side."""
    total_seconds: float = 300.0
    """From the beginning to the last byte; the system's resolver has a limit of its own."""
    redirects: int = 5
    wanted: Callable[[], bool] = lambda: True
    """Asked before every act; where it says no, the time is over."""
    also_allowed: frozenset[str] = frozenset()
    """Addresses that are reached although they are not public."""
    ca_file: Path | None = None
    """Certificates to trust instead of the system's."""
    resolve: Callable[[str, int], list[str]] = resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedLink:
    """What was written."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A link, taken apart."""

    host: str
    port: int
    target: str
    """Path and query, as they are sent."""
    shown: str
    """What may be printed: no query."""


DEFAULT_RULES: Final = LinkRules()


def fetch_link(url: str, *, to: Path, limit_bytes: int, rules: LinkRules = DEFAULT_RULES) -> FetchedLink:
    """Write what lies behind `url` into the new file `to`, of which nothing is left after an error.

    Raises LinkRefusedError when the link will never do, LinkUnreachableError when it may later, and OSError
    when `to` cannot be written.
    """
    place, digest, size = _read(url), hashlib.sha256(), 0
    with to.open("xb") as sink:
        try:
            for chunk in _chunks(place, limit_bytes=limit_bytes, rules=rules):
                size += len(chunk)
                if size > limit_bytes:
                    raise _too_large(place, limit_bytes)
                digest.update(chunk)
                sink.write(chunk)
        except BaseException:
            to.unlink(missing_ok=True)
            raise
    return FetchedLink(sha256=digest.hexdigest(), size_bytes=size)


def check_link(url: str) -> None:
    """Raise what `fetch_link` would raise for a link as it is written, before anything is asked for."""
    _read(url)


def _read(url: str) -> _Place:
    """Take a link apart. Raises LinkRefusedError."""
    shown = shown_source(url)
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError:  # UnicodeError as well
        raise LinkRefusedError(shown, "cannot be read as a link") from None
    if parts.scheme != "https":
        raise LinkRefusedError(shown, "is no https link; give one, or upload the file")
    if "@" in parts.netloc:
        raise LinkRefusedError(shown, "holds a user or password; give a link without, or upload the file")
    if not _HOST.fullmatch(host) or port == 0:
        raise LinkRefusedError(shown, "names no host")
    target = quote(parts.path or "/", safe=_URL_CHARACTERS)
    query = f"?{quote(parts.query, safe=_URL_CHARACTERS)}" if parts.query else ""
    return _Place(host=host, port=port or 443, target=target + query, shown=shown)


def _chunks(place: _Place, *, limit_bytes: int, rules: LinkRules) -> Iterator[bytes]:
    """Yield the body, following redirects; it is at most as long as the other side announced."""
    deadline = time.monotonic() + rules.total_seconds
    for _ in range(rules.redirects + 1):
        with _Connection(place, rules=rules, deadline=deadline) as connection:
            answer = _answer(connection, place)
            if answer.status in _REDIRECTS:
                place = _read_redirect(place, answer.getheader("Location"))
                continue
            _check(answer, place, limit_bytes=limit_bytes)
            yield from _body(answer, place)
            return
    raise LinkRefusedError(place.shown, f"redirects more than {rules.redirects} times; give the last link")


def _answer(connection: "_Connection", place: _Place) -> http.client.HTTPResponse:
    headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "h3", "Connection": "close"}
    try:
        connection.request("GET", place.target, headers=headers)
        return connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(place, error) from None


def _read_redirect(place: _Place, location: str | None) -> _Place:
    if not location:
        raise LinkRefusedError(place.shown, "redirects to nowhere")
    port = "" if place.port == 443 else f":{place.port}"
    host = f"[{place.host}]" if ":" in place.host else place.host
    return _read(urljoin(f"https://{host}{port}{place.target}", location))


def _check(answer: http.client.HTTPResponse, place: _Place, *, limit_bytes: int) -> None:
    """Refuse by the head of the answer what will not be read."""
    if answer.status >= 500 or answer.status in _BUSY:
        raise LinkUnreachableError(place.shown, f"answered HTTP {answer.status}; try again later")
    if answer.status != 200:
        raise LinkRefusedError(
            place.shown,
            f"answered HTTP {answer.status}; check that anybody may read it, and that it is current",
        )
    coding = (answer.getheader("Content-Encoding") or "identity").strip().lower()
    if coding != "identity":
        raise LinkRefusedError(place.shown, "was sent compressed although that was declined; upload the file")
    if answer.length is not None and answer.length > limit_bytes:
        raise _too_large(place, limit_bytes)


def _body(answer: http.client.HTTPResponse, place: _Place) -> Iterator[bytes]:
    announced, size = answer.length, 0
    while True:
        try:
            chunk = answer.read1(_CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(place, error) from None
        if not chunk:
            break
        size += len(chunk)
        yield chunk
    if announced is not None and size != announced:
        raise LinkUnreachableError(place.shown, "broke off before its end; try again later")


def _unreachable(place: _Place, error: Exception) -> LinkUnreachableError:
    match error:
        case TimeoutError():
            fault = "took too long"
        case ssl.SSLCertVerificationError():
            fault = "has a certificate that is not trusted here"
        case ssl.SSLEOFError() | http.client.IncompleteRead():
            fault = "broke off before its end"
        case socket.gaierror():
            fault = "names a host that this machine does not know"
        case http.client.HTTPException():
            fault = "answered with what is no HTTP"
        case _:
            fault = "cannot be reached"
    return LinkUnreachableError(place.shown, f"{fault}; try again later, or upload the file")


def _too_large(place: _Place, limit_bytes: int) -> LinkRefusedError:
    return LinkRefusedError(place.shown, f"is larger than the {limit_bytes:,} bytes that are accepted")


class _Connection(http.client.HTTPConnection):
    """One request over TLS to an address that was looked at, every read of it within the deadline."""

    default_port = 443

    def __init__(self, place: _Place, *, rules: LinkRules, deadline: float) -> None:
        super().__init__(place.host, place.port)
        self._place, self._rules, self._deadline = place, rules, deadline
        self._tls: ssl.SSLSocket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tls is not None:
            self._tls.close()

    def connect(self) -> None:
        """Raises LinkRefusedError where one of the host's addresses is not public, OSError otherwise."""
        addresses = self._rules.resolve(self.host, self.port)
        if not all(is_public(each) or each in self._rules.also_allowed for each in addresses):
            raise LinkRefusedError(
                self._place.shown, "leads to an address that is not public; upload the file instead"
            )
        context = ssl.create_default_context(cafile=self._rules.ca_file)
        self._tls = self._first(addresses, context)
        self.sock = _Timed(self._tls, self._rules, self._deadline)

    def _first(self, addresses: list[str], context: ssl.SSLContext) -> ssl.SSLSocket:
        """Return a connection to the first address that takes one."""
        last: OSError = OSError("no address")
        rules = self._rules
        for address in addresses:
            try:
                seconds = _left(rules, rules.connect_seconds, self._deadline)
                plain = socket.create_connection((address, self.port), seconds)
            except OSError as error:
                last = error
                continue
            try:
                plain.settimeout(_left(rules, rules.connect_seconds, self._deadline))
                # A body without a length ends with TLS's own end only: no ragged one.
                return context.wrap_socket(plain, server_hostname=self.host, suppress_ragged_eofs=False)
            except OSError as error:
                plain.close()
                last = error
        raise last


class _Timed:
    """The part of a socket that http.client uses; a sender of single bytes gains no time by them."""

    def __init__(self, sock: ssl.SSLSocket, rules: LinkRules, deadline: float) -> None:
        self._sock, self._rules, self._deadline = sock, rules, deadline

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(_left(self._rules, self._rules.read_seconds, self._deadline))
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def receive_into(self, buffer: Any) -> int:
        self._sock.settimeout(_left(self._rules, self._rules.read_seconds, self._deadline))
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        """Do nothing: http.client closes its socket before the body is read."""


class _Reader(io.RawIOBase):
    def __init__(self, sock: _Timed) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._sock.receive_into(buffer)


def _left(rules: LinkRules, seconds: float, deadline: float) -> float:
    """Return how long the next act may take. Raises TimeoutError where no time is left, or nobody waits."""
    left = min(seconds, deadline - time.monotonic())
    if left <= 0 or not rules.wanted():
        raise TimeoutError
    return left
