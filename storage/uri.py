"""From a storage address to the store behind it.

Knows which kinds of address there are; each kind's rules are in its own file.
"""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from storage.base import ArtifactStore
from storage.errors import StorageAddressError
from storage.local import LocalStore


def open_store(url: str) -> ArtifactStore:
    """Return the store at `file:///absolute/folder` or at a plain folder path; nothing is created yet.

    Raises StorageAddressError for any other address.
    """
    if not url or "\0" in url:
        raise StorageAddressError("the storage address is empty or holds a NUL; give a folder")
    scheme, separator, _ = url.partition("://")
    if not separator:
        return LocalStore(Path(url).expanduser())
    if scheme.lower() == "file":
        return LocalStore(_folder_of(url))
    if scheme.lower() == "s3":
        raise StorageAddressError("s3:// storage comes in a later version; give a folder or file:///folder")
    raise StorageAddressError(f"no storage speaks {scheme!r}; give a folder or file:///folder")


def _folder_of(url: str) -> Path:
    parts = urlsplit(url)
    folder = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not folder.is_absolute():
        raise StorageAddressError(f"{url!r} is no local folder; write file:///absolute/folder")
    return folder
