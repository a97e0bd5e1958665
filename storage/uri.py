"""From a storage address to the store behind it.

Knows which kinds of address there are; each kind's rules are in its own file.
"""

from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from storage.base import ArtifactStore
from storage.errors import StorageAddressError
from storage.local import LocalStore

DEFAULT_STORAGE_URL: Final = "outputs/store"
"""Where a node writes and a client reads when neither is told: both must mean the same folder."""


def open_store(url: str) -> ArtifactStore:
    """Return the store at `file:///absolute/folder` or at a plain folder path; nothing is created yet.

    Raises StorageAddressError for any other address.
    """
    return LocalStore(folder_of(url))


def folder_of(url: str) -> Path:
    """Return the folder that an address names. Raises StorageAddressError where it names none."""
    if not url or "\0" in url:
        raise StorageAddressError("the storage address is empty or holds a NUL; give a folder")
    scheme, separator, _ = url.partition("://")
    if not separator:
        return Path(url).expanduser()
    if scheme.lower() == "s3":
        raise StorageAddressError("s3:// storage comes in a later version; give a folder or file:///folder")
    if scheme.lower() != "file":
        raise StorageAddressError(f"no storage speaks {scheme!r}; give a folder or file:///folder")
    parts = urlsplit(url)
    folder = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not folder.is_absolute():
        raise StorageAddressError(f"{url!r} is no local folder; write file:///absolute/folder")
    return folder
