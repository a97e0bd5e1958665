"""Put a reference file into storage under the hash of its content: `references/<sha256>.<ext>`.

The same content is stored once, whatever it was called. Only name and size are checked here; what a file
holds is looked at by whoever decodes it.
"""

import hashlib
from pathlib import Path
from typing import Final

from client.errors import UploadError
from client.handle import Upload
from queue_schemas import limits
from storage.base import ArtifactStore
from storage.errors import ArtifactMissingError
from storage.layout import reference_key

_CHUNK_BYTES = 1024 * 1024
_KINDS: Final = {
    "image": (
        ("png", "jpg", "jpeg", "webp", "bmp", "tif", "tiff", "heic", "heif", "avif"),
        limits.IMAGE_BYTES,
    ),
    "video": (("mp4", "mov", "mkv", "webm", "avi", "m4v"), limits.VIDEO_BYTES),
    "audio": (("wav", "mp3", "flac", "m4a", "aac", "ogg", "opus"), limits.AUDIO_BYTES),
}


def upload_file(store: ArtifactStore, path: Path) -> Upload:
    """Stream a file in unless its content is there. Raises UploadError, StorageUnavailableError."""
    kind, extension, limit_bytes = _kind_of(path)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise UploadError(f"{path} is no file")
        if not 0 < size <= limit_bytes:
            raise UploadError(f"{path}: {size:,} bytes; {kind} references have 1 to {limit_bytes:,}")
        digest = _sha256(path)
        key = reference_key(digest, extension)
        is_new = not _exists(store, key)
        if is_new:
            stored = store.put_file(key, path)
            if stored.sha256 != digest:
                raise UploadError(f"{path} changed while it was uploaded; upload it again")
    except OSError as error:
        raise UploadError(f"cannot read {path}: {error.strerror}") from None
    return Upload(key=key, sha256=digest, size_bytes=size, kind=kind, is_new=is_new)


def _kind_of(path: Path) -> tuple[str, str, int]:
    extension = path.suffix.removeprefix(".").lower()
    for kind, (extensions, limit_bytes) in _KINDS.items():
        if extension in extensions:
            return kind, extension, limit_bytes
    known = ", ".join(name for names, _ in _KINDS.values() for name in names)
    raise UploadError(f"{path}: a reference's name ends in one of {known}")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _exists(store: ArtifactStore, key: str) -> bool:
    try:
        store.open(key).close()
    except ArtifactMissingError:
        return False
    return True
