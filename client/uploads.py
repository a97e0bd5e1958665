"""One reference file: looked at, hashed, and put into a store as `references/<sha256>.<ext>`.

The same content is stored once, whatever it was called. Everything that is wrong is said by place and name.
"""

import hashlib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client.errors import UploadError
from client.handle import Upload
from client.media_kinds import inspect_file, kind_of
from queue_schemas.references import KIND_BYTES, Medium, shown_source, stored_sha256
from storage.base import ArtifactStore
from storage.errors import ArtifactMissingError
from storage.layout import reference_key

_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """One file as it was read."""

    medium: Medium
    """The first place that names it."""
    key: str
    sha256: str
    path: Path | None = None
    """Where it lies on this machine; None for what is in the store already."""
    size_bytes: int | None = None
    seconds: float | None = None
    """Of a clip or sound, by its header; None for pictures, and where nothing here can tell."""


def called(medium: Medium) -> str:
    """Return how a person is told of a file: `references[0] (clip.mp4)`."""
    name = shown_source(medium.source)
    return f"{medium.place} ({name})" if medium.place else name


def read_file(medium: Medium, path: Path) -> FoundFile:
    """Look at a file on this machine. Raises UploadError."""
    try:
        if not path.is_file():
            reason = "is no file" if path.exists() else "is not there"
            raise UploadError(f"{called(medium)} {reason}; name the file itself")
        size, most = path.stat().st_size, KIND_BYTES[medium.kind]
        if not 0 < size <= most:
            raise UploadError(
                f"{called(medium)} has {size:,} bytes; a reference of kind {medium.kind} has 1 to {most:,}:"
                " make it smaller"
            )
        facts = inspect_file(path, medium, name=shown_source(medium.source))
        digest = sha256_of(path)
    except OSError as error:
        raise UploadError(f"{called(medium)} cannot be read: {error.strerror}") from None
    if medium.sha256 not in (None, digest):
        raise UploadError(f"{called(medium)} does not hold what its sha256 says; leave sha256 out")
    return FoundFile(
        medium=medium,
        key=reference_key(digest, facts.ending),
        sha256=digest,
        path=path,
        size_bytes=size,
        seconds=facts.seconds,
    )


def put_file(store: ArtifactStore, file: FoundFile) -> bool:
    """Store a file unless its content is there, by a copy that nobody changes; say whether it was new.

    Raises UploadError, StorageUnavailableError.
    """
    assert file.path is not None
    if exists(store, file.key):
        return False
    with tempfile.TemporaryDirectory(prefix="h3-upload-") as folder:
        copy = Path(folder) / Path(file.key).name
        try:
            digest = sha256_of(file.path, copy_to=copy)
        except OSError as error:
            raise UploadError(f"it cannot be copied to {folder}: {error.strerror}") from None
        if digest != file.sha256:
            raise UploadError("it changed while it was uploaded; submit it again")
        store.put_file(file.key, copy)
    return True


def upload_file(store: ArtifactStore, path: Path) -> Upload:
    """Look at a file and store it. Raises UploadError, StorageUnavailableError."""
    kind = kind_of(str(path), called=str(path))
    file = read_file(Medium(place="", kind=kind, source=str(path), sha256=None), path)
    assert file.size_bytes is not None
    is_new = put_file(store, file)
    return Upload(key=file.key, sha256=file.sha256, size_bytes=file.size_bytes, kind=kind, is_new=is_new)


def exists(store: ArtifactStore, key: str) -> bool:
    """Say whether the store has the key. Raises StorageUnavailableError."""
    try:
        store.open(key).close()
    except ArtifactMissingError:
        return False
    return True


def check_stored(store: ArtifactStore, media: Iterable[Medium]) -> None:
    """See that the store holds what these media name by key. Raises UploadError, StorageUnavailableError."""
    for medium in {medium.source: medium for medium in media if stored_sha256(medium.source)}.values():
        if not exists(store, medium.source):
            raise UploadError(
                f"{called(medium)} is not in {store.url}; name the file itself, and it is uploaded again"
            )


def sha256_of(path: Path, *, copy_to: Path | None = None) -> str:
    """Return the hash of a file's content, which is copied in the same breath where `copy_to` says so."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        sink = copy_to.open("xb") if copy_to is not None else None
        try:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
                if sink is not None:
                    sink.write(chunk)
        finally:
            if sink is not None:
                sink.close()
    return digest.hexdigest()
