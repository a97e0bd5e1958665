"""What an upload looks like on the wire of a real HTTPS service: plain signed requests, no checksum trailers.

Only over HTTPS does boto3 send trailers (`aws-chunked`); some services refuse them, others store them inside
the object (boto3 issues 4398, 4401, 4409, 4435). So a test over HTTP would show nothing.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from storage.base import ArtifactStore
from storage.errors import StorageUnavailableError
from storage.s3 import SINGLE_PUT_BYTES
from storage.uri import open_store

if TYPE_CHECKING:
    from tests.storage.conftest import S3Server, StartS3Server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1, and its key."""
    pytest.importorskip("cryptography", reason="moto[server] brings cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a service of these tests")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "certificate.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def https_server(start_s3_server: "StartS3Server", certificate: tuple[Path, Path]) -> Iterator["S3Server"]:
    with start_s3_server(tls=certificate) as server:
        yield server


@pytest.fixture
def https_store(
    https_server: "S3Server",
    certificate: tuple[Path, Path],
    aws: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> ArtifactStore:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate[0]))
    return open_store(f"s3://{https_server.make_bucket()}/films?endpoint={https_server.endpoint}")


def uploads(server: "S3Server", store: ArtifactStore) -> list[dict[str, Any]]:
    """Return the requests with a body that went to this store."""
    bucket = store.url.removeprefix("s3://").partition("/")[0]
    requests = [r for r in server.requests() if r["path"].startswith(f"/{bucket}/")]
    return [request for request in requests if request["method"] in ("PUT", "POST")]


def checksum_headers(request: Mapping[str, Any]) -> list[str]:
    marks = ("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer", "transfer-encoding", "content-encoding")
    return [name for name in request["headers"] if name.startswith(marks)]


def test_every_kind_of_write_is_a_plain_signed_request(
    https_store: ArtifactStore, https_server: "S3Server", tmp_path: Path
) -> None:
    (tmp_path / "film.mp4").write_bytes(b"film")
    (tmp_path / "long.mp4").touch()
    os.truncate(tmp_path / "long.mp4", SINGLE_PUT_BYTES + 1)

    https_store.put_bytes("record.json", b"{}")
    https_store.put_if_absent("manifest.json", b"{}")
    https_store.put_file("film.mp4", tmp_path / "film.mp4")
    https_store.put_file("long.mp4", tmp_path / "long.mp4")

    seen = uploads(https_server, https_store)
    assert len(seen) == 3 + 1 + 5 + 1  # three single writes; start, parts and end of the long one
    for request in seen:
        assert checksum_headers(request) == []
        assert len(request["headers"]["x-amz-content-sha256"]) == 64
        assert request["headers"]["authorization"].startswith("AWS4-HMAC-SHA256 ")
    assert seen[2]["headers"]["x-amz-content-sha256"] == hashlib.sha256(b"film").hexdigest()
    assert seen[2]["headers"]["content-length"] == "4"
    assert https_store.read_bytes("film.mp4", limit_bytes=100) == b"film"


def test_boto3s_own_defaults_would_have_been_seen(
    https_store: ArtifactStore, https_server: "S3Server", tmp_path: Path
) -> None:
    (tmp_path / "film.mp4").write_bytes(b"film")
    bucket = https_store.url.removeprefix("s3://").partition("/")[0]
    client = https_server.client()

    with (tmp_path / "film.mp4").open("rb") as stream:
        client.put_object(Bucket=bucket, Key="film.mp4", Body=stream)

    (request,) = uploads(https_server, https_store)
    assert request["headers"]["content-encoding"] == "aws-chunked"
    assert "x-amz-trailer" in request["headers"]


def test_a_certificate_that_nobody_vouches_for_is_refused_with_a_remedy(
    https_server: "S3Server", aws: Mapping[str, str]
) -> None:
    store = open_store(f"s3://bucket?endpoint={https_server.endpoint}")

    with pytest.raises(StorageUnavailableError, match="certificate is not trusted: name its authority"):
        store.put_bytes("a", b"")
