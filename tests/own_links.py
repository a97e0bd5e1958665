"""An https server on 127.0.0.1 that answers as a test says, with a certificate of its own."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

Answer = Callable[[ssl.SSLSocket], None]


def whole(body: bytes, *, status: str = "200 OK", **headers: str) -> Answer:
    """Answer with a body of known length, and with more headers, `_` for `-`."""

    def answer(caller: ssl.SSLSocket) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        caller.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    return answer


def raw(data: bytes, *, ends: bool = True) -> Answer:
    """Answer with these bytes; without an end the connection breaks off instead of closing TLS."""

    def answer(caller: ssl.SSLSocket) -> None:
        caller.sendall(data)
        if not ends:
            socket.socket(fileno=caller.detach()).close()

    return answer


@dataclass(slots=True)
class LinkServer:
    """Answers by path; a test adds to `answers`."""

    port: int
    ca_file: Path
    answers: dict[str, Answer] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)
    """The head of each request, as it came."""

    def link(self, path: str, *, host: str = "localhost") -> str:
        return f"https://{host}:{self.port}{path}"

    def handle(self, caller: ssl.SSLSocket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            part = caller.recv(65_536)
            if not part:
                return
            head += part
        self.heads.append(head.decode("latin-1"))
        target = self.heads[-1].split(" ")[1]
        self.answers.get(target.partition("?")[0], whole(b"", status="404 Not Found"))(caller)


@contextmanager
def serving_links(folder: Path) -> Iterator[LinkServer]:
    """Serve until the block ends, each connection on a thread of its own."""
    certificate, key = make_certificate(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = LinkServer(port=listener.getsockname()[1], ca_file=certificate)
        threading.Thread(target=_accept, args=(listener, context, server), daemon=True).start()
        yield server
        with suppress(OSError):  # wakes the thread that accepts
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, context: ssl.SSLContext, server: LinkServer) -> None:
    while True:
        try:
            plain, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve_one, args=(plain, context, server), daemon=True).start()


def _serve_one(plain: socket.socket, context: ssl.SSLContext, server: LinkServer) -> None:
    plain.settimeout(10)
    # The other side may leave whenever it likes.
    with suppress(OSError, ValueError), context.wrap_socket(plain, server_side=True) as caller:
        server.handle(caller)
        caller.unwrap()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate of localhost and 127.0.0.1, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a server of these tests")])
    names = [
        x509.DNSName("localhost"),
        x509.DNSName("films.example"),
        x509.IPAddress(IPv4Address("127.0.0.1")),
    ]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, private
