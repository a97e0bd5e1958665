"""From a storage address to the store behind it.

Knows which kinds of address there are; each kind's rules are in its own file.
"""

import errno
import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from storage.base import ArtifactStore
from storage.errors import StorageAddressError
from storage.known import KnownStore
from storage.local import LocalStore
from storage.s3_address import parse_s3_address

DEFAULT_STORAGE_URL: Final = "outputs/store"
"""Where a node writes and a client reads when neither is told: both must mean the same folder."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}")
_FAULTS: Final = {
    errno.ENAMETOOLONG: "is too long for the file system",
    errno.ELOOP: "passes a link that leads to itself",
}
_ANY_FORM = "give a folder, file:///folder or s3://bucket/prefix"


def open_known_store(url: str, *, identity: str) -> ArtifactStore:
    """Return the store with this id; while another or none lies at `url` it is away, and is not made anew.

    Raises StorageAddressError.
    """
    return KnownStore(open_store(url), identity)


def open_store(url: str) -> ArtifactStore:
    """Return the store at a folder, `file:///absolute/folder` or `s3://bucket/prefix?endpoint=https://host`.

    Nothing is created or reached yet. Raises StorageAddressError for any other address, without repeating it.
    """
    if _scheme(url) == "s3":
        address = parse_s3_address(url)
        from storage.s3 import S3Store  # noqa: PLC0415 - boto3 takes a fifth of a second

        return S3Store(address)
    return LocalStore(folder_of(url))


def folder_of(url: str) -> Path:
    """Return the folder that an address names. Raises StorageAddressError where it names none."""
    match _scheme(url):
        case None:
            return _usable(_home_filled_in(url))
        case "file":
            return _usable(_folder_of_file_url(url))
        case "s3":
            raise StorageAddressError("s3:// is no folder; give a folder or file:///folder")
        case scheme:
            raise StorageAddressError(f"no storage speaks {scheme!r}; {_ANY_FORM}")


def _scheme(url: str) -> str | None:
    if not url or "\0" in url:
        raise StorageAddressError(f"the storage address is empty or holds a NUL; {_ANY_FORM}")
    scheme, separator, _ = url.partition("://")
    if not separator:
        if url.lower().startswith(("s3:", "file:")):  # else a slip of the pen makes a folder of that name
            raise StorageAddressError(f"'://' is missing in this storage address; {_ANY_FORM}")
        return None
    if not _SCHEME.fullmatch(scheme):
        raise StorageAddressError(f"this storage address cannot be read; {_ANY_FORM}")
    return scheme.lower()


def _home_filled_in(url: str) -> Path:
    try:
        return Path(url).expanduser()
    except RuntimeError:
        raise StorageAddressError(
            "the ~ of this storage address names no user of this machine; give the whole path, or ./~ for a"
            " folder of that name"
        ) from None


def _usable(folder: Path) -> Path:
    """Return a folder that a file system can hold, whether it is there or not."""
    try:
        folder.stat()
    except ValueError:
        raise StorageAddressError(f"the storage address holds a NUL; {_ANY_FORM}") from None
    except OSError as error:
        fault = _FAULTS.get(error.errno or 0)
        if fault is not None:
            raise StorageAddressError(f"this storage address {fault}; name another folder") from None
    return folder


def _folder_of_file_url(url: str) -> Path:
    parts = urlsplit(url)
    folder = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not folder.is_absolute():
        raise StorageAddressError("this file:// address is no local folder; write file:///absolute/folder")
    return folder
