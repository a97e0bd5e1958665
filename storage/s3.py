"""`S3Store`: a bucket, or a prefix of one, as artifact store, on AWS or any service that speaks S3.

Every request is signed with the SHA-256 of its body, so a body damaged on its way is refused; the checksum
trailers that boto3 sends by default are off, since many services refuse them or store them inside the object.
A client is made at the first request and serves every thread; a forked process goes on with it safely.
Knows no schema: bytes in, bytes out.
"""

import hashlib
import io
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

import boto3.session
import botocore.loaders
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from queue_schemas.benchmark import OutputFile
from storage.errors import ArtifactMissingError, ArtifactTooLargeError, StorageUnavailableError
from storage.layout import PREFIXES, PROBE_KEY, check_key, check_prefix, is_key
from storage.s3_address import Addressing, S3Address
from storage.s3_errors import UNCONDITIONAL_CODES, code_of, translated

SINGLE_PUT_BYTES: Final = 64 * 1024**2
"""Up to here a file is one PUT; above, parts of one fixed length, as R2 demands."""
PART_BYTES: Final = 16 * 1024**2
LINK_SECONDS: Final = 7 * 86_400
"""The longest that services sign for; temporary credentials shorten it. So a link is made when asked for."""
ATTEMPTS: Final = 4
"""Of one request, the first included: a service that takes requests and answers none is given up after two
minutes, one that is not there after half a minute at most."""

_CONFLICT_SECONDS: Final = (0.1, 0.3, 1.0, 3.0)
_CHUNK_BYTES: Final = 1024 * 1024
_CONTENT_TYPES: Final = {
    ".mp4": "video/mp4",
    ".json": "application/json",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class _Found:
    """What a HEAD says of an object."""

    size_bytes: int
    sha256: str | None
    writer: str | None


class S3Store:
    """Artifacts below `address`; the bucket must exist. `attempts` bounds how often a request is sent."""

    def __init__(self, address: S3Address, *, attempts: int = ATTEMPTS) -> None:
        self.address = address
        self._attempts = attempts
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._session: Any = None
        self._clients: dict[str | None, Any] = {}

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    @property
    def url(self) -> str:
        return self.address.url

    def put_bytes(self, key: str, data: bytes) -> OutputFile:
        sha256 = _sha256(data)
        with self._translated("write", check_key(key)):
            self._put(key, data, sha256=sha256)
        return OutputFile(name=key, size_bytes=len(data), sha256=sha256)

    def put_file(self, key: str, source: Path) -> OutputFile:
        """As the protocol says; an unreadable `source` raises its own OSError: no fault of the store.

        Size and hash are compared with what the service says of the object afterwards.
        """
        check_key(key)
        with source.open("rb") as stream:
            before = _stamp(stream)
            size, sha256 = _measure(stream)
            with self._translated("write", key):
                if size <= SINGLE_PUT_BYTES:
                    self._put(key, stream, sha256=sha256)
                else:
                    self._put_parts(key, stream, sha256=sha256)
                found = self._head(key)
            if _stamp(stream) != before:
                raise StorageUnavailableError(f"{source.name} changed while it was being stored as {key!r}")
        if found is None or (found.size_bytes, found.sha256) != (size, sha256):
            raise StorageUnavailableError(
                f"{key!r} in {self.url} is not what was written: the service, or a proxy before it,"
                " alters objects or drops their metadata"
            )
        return OutputFile(name=key, size_bytes=size, sha256=sha256)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """As the protocol says. Looks first: where the store decides nothing, a caller's lock is enough."""
        check_key(key)
        writer = secrets.token_hex(8)
        with self._translated("create", key):
            if self._head(key, denied_is_none=True) is not None:
                return False
            for pause in (*_CONFLICT_SECONDS, 0.0):
                status = self._create(key, data, writer=writer)
                if status == 501:
                    self._put(key, data, sha256=_sha256(data))
                if status in (200, 501):
                    return True
                # A request may have been sent again because its answer was lost: then the object is our own.
                found = self._head(key, denied_is_none=True)
                if found is not None or status == 412:
                    return found is not None and found.writer == writer
                time.sleep(pause)  # 409 and nothing there: another writer is not done, or has failed
        raise StorageUnavailableError(f"cannot create {key!r} in {self.url}: other writers keep interfering")

    def conditional_writes(self) -> bool:
        """As the protocol says; the probe stays, so every later call is one request."""
        with self._translated("create", PROBE_KEY):
            statuses = [self._create(PROBE_KEY, b"h3", writer="probe")]
            if statuses == [200]:
                statuses.append(self._create(PROBE_KEY, b"h3", writer="probe"))
            if 501 in statuses:
                self._put(PROBE_KEY, b"h3", sha256=_sha256(b"h3"))  # shows whether that was the only reason
        return statuses[-1] in (409, 412)

    def read_bytes(self, key: str, *, limit_bytes: int) -> bytes | None:
        """As the protocol says. Raises ArtifactTooLargeError; no more than the limit is kept in memory."""
        try:
            with self.open(key) as stream:
                data = stream.read(limit_bytes + 1)
        except ArtifactMissingError:
            return None
        if len(data) > limit_bytes:
            raise ArtifactTooLargeError(key, limit_bytes=limit_bytes)
        return data

    def open(self, key: str) -> BinaryIO:
        name = self.address.object_name(check_key(key))
        with self._translated("read", key):
            try:
                answer = self._client().get_object(Bucket=self.address.bucket, Key=name)
            except ClientError as error:
                code, status = code_of(error)
                if status != 404 or code == "NoSuchBucket":
                    raise
                raise ArtifactMissingError(key) from None
        return io.BufferedReader(_Download(answer["Body"], store=self, key=key), _CHUNK_BYTES)

    def list(self, prefix: str) -> Iterator[str]:
        return filter(is_key, self.names(prefix))

    def names(self, prefix: str) -> Iterator[str]:
        for page in self._pages("list_objects_v2", check_prefix(prefix)):
            names = (self.address.key_of(entry["Key"]) for entry in page.get("Contents", ()))
            yield from (name for name in names if not _is_hidden(name))

    def folders(self, prefix: str) -> Iterator[str]:
        for page in self._pages("list_objects_v2", check_prefix(prefix), Delimiter="/"):
            names = (self.address.key_of(entry["Prefix"]) for entry in page.get("CommonPrefixes", ()))
            yield from filter(is_key, (name.removesuffix("/") for name in names))

    def locate(self, key: str) -> str:
        """Return a signed link; anybody who has it can read the artifact for `LINK_SECONDS`."""
        parameters = {
            "Bucket": self.address.bucket,
            "Key": self.address.object_name(check_key(key)),
            "ResponseContentType": _content_type(key),
        }
        endpoint = self.address.public_endpoint or self.address.endpoint
        with self._translated("sign a link to", key):
            client = self._client(endpoint)
            return str(client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=LINK_SECONDS))

    def remove_abandoned(self, *, older_than_seconds: float) -> int:
        """Abort uploads in parts that never ended: they are billed and no listing shows them."""
        removed = 0
        for page in chain.from_iterable(self._pages("list_multipart_uploads", prefix) for prefix in PREFIXES):
            for upload in page.get("Uploads", ()):
                if upload["Initiated"].timestamp() < time.time() - older_than_seconds:
                    with self._translated("clean", self.address.key_of(upload["Key"])):
                        self._abort(upload["Key"], upload["UploadId"])
                    removed += 1
        return removed

    def _put(self, key: str, body: bytes | BinaryIO, *, sha256: str, **options: Any) -> None:
        answer = self._client().put_object(Body=body, **self._naming(key, sha256=sha256) | options)
        if not answer.get("ETag"):  # a web page answers 200 to anything
            raise StorageUnavailableError(f"what answers at {self.url} is no S3 service: check the endpoint")

    def _create(self, key: str, data: bytes, *, writer: str) -> int:
        """Return 200 for created, 412 taken, 409 another writer at work, 501 no conditions known here."""
        metadata = {"sha256": _sha256(data), "writer": writer}
        try:
            self._put(key, data, sha256=metadata["sha256"], Metadata=metadata, IfNoneMatch="*")
        except ClientError as error:
            code, status = code_of(error)
            if code in UNCONDITIONAL_CODES:
                return 501
            if status in (409, 412):
                return status
            raise
        return 200

    def _put_parts(self, key: str, stream: BinaryIO, *, sha256: str) -> None:
        client, where = self._client(), self._naming(key, sha256=sha256)
        place = {"Bucket": where["Bucket"], "Key": where["Key"]}
        upload = client.create_multipart_upload(**where)["UploadId"]
        parts: list[dict[str, Any]] = []
        try:
            while data := stream.read(PART_BYTES):
                number = len(parts) + 1
                answer = client.upload_part(UploadId=upload, PartNumber=number, Body=data, **place)
                parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            client.complete_multipart_upload(UploadId=upload, MultipartUpload={"Parts": parts}, **place)
        except BaseException as error:
            if isinstance(error, ClientError) and code_of(error)[0] == "NoSuchUpload":
                return  # completed by a request whose answer was lost; the caller compares what is there
            with suppress(BotoCoreError, ClientError):  # the reason is on its way up
                self._abort(where["Key"], upload)
            raise

    def _abort(self, object_name: str, upload: str) -> None:
        self._client().abort_multipart_upload(Bucket=self.address.bucket, Key=object_name, UploadId=upload)

    def _head(self, key: str, *, denied_is_none: bool = False) -> _Found | None:
        """Return what is there; without s3:ListBucket a name that is missing is denied, not missing."""
        name = self.address.object_name(key)
        try:
            answer = self._client().head_object(Bucket=self.address.bucket, Key=name)
        except ClientError as error:
            status = code_of(error)[1]
            if status == 404 or (status == 403 and denied_is_none):
                return None
            raise
        metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
        return _Found(int(answer["ContentLength"]), metadata.get("sha256"), metadata.get("writer"))

    def _naming(self, key: str, *, sha256: str) -> dict[str, Any]:
        return {
            "Bucket": self.address.bucket,
            "Key": self.address.object_name(key),
            "ContentType": _content_type(key),
            "Metadata": {"sha256": sha256},
        }

    def _pages(self, operation: str, prefix: str, **options: str) -> Iterator[dict[str, Any]]:
        with self._translated("list", prefix or "everything"):
            name = self.address.object_name(prefix)
            paginator = self._client().get_paginator(operation)
            yield from paginator.paginate(Bucket=self.address.bucket, Prefix=name, **options)

    def _translated(self, verb: str, key: str) -> AbstractContextManager[None]:
        return translated(self.address, verb, key)

    def _client(self, endpoint: str | None = None) -> Any:
        """Return the client for an endpoint, the store's own by default."""
        if self._process != os.getpid():
            self._after_fork()
        endpoint = endpoint or self.address.endpoint
        with self._lock:
            if endpoint not in self._clients:
                self._session = self._session or _new_session()
                self._clients[endpoint] = self._session.client(
                    "s3",
                    endpoint_url=endpoint,
                    # Every service of one's own accepts some name; AWS's is in the environment or profile.
                    region_name=self.address.region or (endpoint and "us-east-1"),
                    config=_config(self.address, attempts=self._attempts),
                )
            return self._clients[endpoint]

    def _after_fork(self) -> None:
        """Leave the parent's connections to the parent; the client itself is good here too."""
        self._process, self._lock = os.getpid(), threading.Lock()
        for client in self._clients.values():
            client.close()


class _Download(io.RawIOBase):
    """An object's body as a file; what breaks on the way is the store's error."""

    def __init__(self, body: Any, *, store: S3Store, key: str) -> None:
        self._body, self._store, self._key = body, store, key

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with translated(self._store.address, "read", self._key):
            return int(self._body.readinto(buffer))

    def close(self) -> None:
        self._body.close()
        super().close()


def _new_session() -> Any:
    core = botocore.session.get_session()
    core.register_component("data_loader", _service_models())
    return boto3.session.Session(botocore_session=core)


@cache
def _service_models() -> Any:
    """Return boto3's description of S3, parsed once per process: nine tenths of what a client costs."""
    return botocore.loaders.create_loader()


def _addressing(address: S3Address) -> Addressing:
    """Return how the bucket is named; boto3's own "auto" signs AWS links for a host of the wrong region."""
    if address.addressing is not None:
        return address.addressing
    return "virtual" if address.endpoint is None else "path"


def _config(address: S3Address, *, attempts: int) -> Config:
    return Config(
        signature_version="s3v4",
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": _addressing(address), "payload_signing_enabled": True},
        connect_timeout=5,
        read_timeout=30,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=32,  # threads that may read at once
        tcp_keepalive=True,
        ignore_configured_endpoint_urls=True,  # the address alone says where a store lies
    )


def _is_hidden(name: str) -> bool:
    """Say whether a part of the name is hidden or empty, as in the mark that consoles make of a folder."""
    return any(not part or part.startswith(".") for part in name.split("/"))


def _content_type(key: str) -> str:
    return _CONTENT_TYPES.get(Path(key).suffix, "application/octet-stream")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _measure(stream: BinaryIO) -> tuple[int, str]:
    """Return size and SHA-256 of what is left to read, and rewind."""
    digest, size = hashlib.sha256(), 0
    while chunk := stream.read(_CHUNK_BYTES):
        digest.update(chunk)
        size += len(chunk)
    stream.seek(0)
    return size, digest.hexdigest()


def _stamp(stream: BinaryIO) -> tuple[int, int]:
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns
