"""What an `s3://` address says: bucket, prefix, and where and how the service is spoken to.

    s3://bucket/prefix?endpoint=https://host:9000&region=auto&addressing=path&public_endpoint=https://films.host

Credentials are never part of it: boto3's usual chain finds them (environment, profile, instance role). An
address that cannot be read is not repeated in the error, since it may hold a secret in the wrong place.
Knows no client and no network.
"""

import re
from dataclasses import dataclass, fields
from typing import Final, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from queue_schemas.errors import nearest_hint
from storage.errors import StorageAddressError
from storage.layout import is_key

Addressing = Literal["path", "virtual"]

PREFIX_CHARACTERS: Final = 256
"""With a key of 512 this stays below the 1,024 bytes that S3 allows for a name."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_OPTION = re.compile(r"[a-z_]{1,30}")
_ENDPOINT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*/?")
_FORM = "write s3://bucket/prefix?endpoint=https://host"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Address:
    """Where a store lies; holds no secret, so it may be shown, logged and compared."""

    bucket: str
    prefix: str = ""
    """Without slashes at its ends; empty means the whole bucket."""
    endpoint: str | None = None
    """Of the service as this process reaches it; None is AWS."""
    region: str | None = None
    addressing: Addressing | None = None
    """`path` is host/bucket/key, `virtual` bucket.host/key. None is `virtual` on AWS and `path` elsewhere:
    with a service of one's own a bucket is rarely a host name."""
    public_endpoint: str | None = None
    """Of the service as a reader of links reaches it: its host is signed and cannot be changed later."""

    @property
    def url(self) -> str:
        options = [(name, getattr(self, name)) for name in OPTIONS]
        given = [(name, value) for name, value in options if value is not None]
        path = f"s3://{self.bucket}/{self.prefix}".rstrip("/")
        return f"{path}?{urlencode(given, safe=':/[]')}" if given else path

    def object_name(self, key: str) -> str:
        """Return what `key` (or the start of one) is called in the bucket."""
        return f"{self.prefix}/{key}" if self.prefix else key

    def key_of(self, object_name: str) -> str:
        return object_name.removeprefix(f"{self.prefix}/" if self.prefix else "")


OPTIONS: Final = tuple(f.name for f in fields(S3Address) if f.name not in ("bucket", "prefix"))
"""None of them is a secret."""


def parse_s3_address(url: str) -> S3Address:
    """Read an `s3://` address. Raises StorageAddressError, which repeats nothing of what was given."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise StorageAddressError(f"this s3:// address cannot be read; {_FORM}") from None
    if "@" in url or ":" in parts.netloc:
        raise StorageAddressError(
            "an s3:// address holds no credentials; leave them to AWS_ACCESS_KEY_ID and"
            f" AWS_SECRET_ACCESS_KEY, a profile or an instance role, and {_FORM}"
        )
    if parts.fragment or not _BUCKET.fullmatch(parts.netloc):
        raise StorageAddressError(f"this s3:// address names no bucket that can exist; {_FORM}")
    prefix = parts.path.strip("/")
    if prefix and (len(prefix) > PREFIX_CHARACTERS or not is_key(prefix)):
        raise StorageAddressError(
            "the prefix of an s3:// address is made of letters, digits, '.', '_', '-' and '/',"
            f" {PREFIX_CHARACTERS} at most; {_FORM}"
        )
    options = _read_options(parts.query)
    return S3Address(
        bucket=parts.netloc,
        prefix=prefix,
        endpoint=_endpoint(options, "endpoint"),
        region=_region(options),
        addressing=_addressing(options),
        public_endpoint=_endpoint(options, "public_endpoint"),
    )


def _read_options(query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) != len(pairs):
        raise StorageAddressError("an option of this s3:// address is given twice")
    for name in options:
        if name not in OPTIONS:
            shown = f" {name!r}" if _OPTION.fullmatch(name) else ""
            raise StorageAddressError(
                f"an s3:// address has no option{shown}{nearest_hint(name, OPTIONS)};"
                f" there are {', '.join(OPTIONS)}"
            )
    return options


def _endpoint(options: dict[str, str], name: str) -> str | None:
    value = options.get(name)
    if value is None:
        return None
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment or not _ENDPOINT_PATH.fullmatch(parts.path):
        raise StorageAddressError(f"the {name} of this s3:// address is none; write {name}=https://host:port")
    return value.rstrip("/")


def _region(options: dict[str, str]) -> str | None:
    region = options.get("region")
    if region is not None and not _REGION.fullmatch(region):
        raise StorageAddressError("the region of this s3:// address is none; write region=eu-central-1")
    return region


def _addressing(options: dict[str, str]) -> Addressing | None:
    match options.get("addressing"):
        case None:
            return None
        case "path":
            return "path"
        case "virtual":
            return "virtual"
    raise StorageAddressError("the addressing of an s3:// address is path or virtual")
