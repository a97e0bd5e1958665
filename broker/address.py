"""A Redis address: checked before anything is tried, shown without its secrets.

redis-py takes what it does not understand for a default (`/abc` is database 0), or fails later in words that
hold a part of the password. So every part is checked here, and a refusal repeats none that could be one.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from broker.errors import QueueAddressError

SCHEMES: Final = ("redis", "rediss", "unix")
_SCHEME: Final = r"[A-Za-z][A-Za-z0-9+.-]{0,20}"
_FORM: Final = "write redis://host:port/0, rediss://host:port/0 or unix:///path/to/socket"
_ENCODE: Final = "in user and password write %40 for @, %2F for /, %23 for # and %3F for ?"
_ANY: Final[tuple[str, ...]] = ()
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "db": _ANY,
    "username": _ANY,
    "password": _ANY,
    "client_name": _ANY,
}
"""Every option of an address, and its values where they are few."""
_TLS_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "ssl_ca_certs": _ANY,
    "ssl_ca_path": _ANY,
    "ssl_certfile": _ANY,
    "ssl_keyfile": _ANY,
    "ssl_cert_reqs": ("none", "optional", "required"),
    "ssl_check_hostname": ("true", "false"),
}
_SHOWN: Final = frozenset({"db", *_TLS_OPTIONS})
"""Options that are no secrets."""


def show_address(url: str) -> str:
    """Return `host:port` or the socket's path, for messages. Raises QueueAddressError where it is none."""
    parts, host, port = _split(url)
    _check_options(parts)
    if parts.scheme == "unix":
        if not parts.path:
            raise QueueAddressError(f"the Redis address names no socket; {_FORM}")
        return parts.path
    if not re.fullmatch(r"/?|/[0-9]{1,9}", parts.path):
        raise QueueAddressError(f"the Redis address does not end in the number of a database; {_FORM}")
    return f"{host or 'localhost'}:{port or 6379}"


def mask_secrets(url: str, *, harmless: Collection[str] = ()) -> str:
    """Return an address of any kind fit for output, also one that cannot be read; a folder stays as it is.

    `***` stands for a password, and for the value of every option that is neither known to be harmless here
    nor named by who knows the address.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    if not re.fullmatch(_SCHEME, scheme):
        return "***"
    # Up to the last @: whoever wrote a password with / # ? or @ in it meant all of that.
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    shown_login = f"{user}:***" if colon else "***" * bool(login)
    place, mark, query = place.partition("?")
    options = "&".join(_shown_option(option, harmless) for option in query.split("&"))
    return f"{scheme}://{shown_login}{at}{place}{mark}{options}"


def _shown_option(option: str, harmless: Collection[str]) -> str:
    name, equals, _ = option.partition("=")
    if name in _SHOWN or name in harmless or not option:
        return option
    return f"{name}=***" if equals else "***"


def _split(url: str) -> tuple[SplitResult, str | None, int | None]:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        is_scheme = separator and re.fullmatch(_SCHEME, scheme)
        raise QueueAddressError(
            f"the Redis address has {f'scheme {scheme!r}' if is_scheme else 'no scheme'}; {_FORM}"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # its words repeat the password
        raise QueueAddressError(f"the Redis address cannot be read; {_FORM}; {_ENCODE}") from None
    if parts.fragment or "@" in parts.path + parts.query:
        raise QueueAddressError(f"the Redis address goes on where it should end; {_FORM}; {_ENCODE}")
    return parts, host, port


def _check_options(parts: SplitResult) -> None:
    known = {**_OPTIONS, **_TLS_OPTIONS} if parts.scheme == "rediss" else _OPTIONS
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            shown = f" {name!r}" if re.fullmatch(r"[a-z_]{1,30}", name) else ""
            raise QueueAddressError(
                f"a {parts.scheme}:// address has no option{shown}; there are {', '.join(known)}"
            )
        if not value or (name == "db" and not re.fullmatch(r"[0-9]{1,9}", value)):
            raise QueueAddressError(f"the option {name!r} of the Redis address has no value; {_FORM}")
        if known[name] and value not in known[name]:
            raise QueueAddressError(f"{name} of the Redis address is {', '.join(known[name])}, nothing else")
