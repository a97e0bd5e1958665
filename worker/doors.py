"""Who may come in: a request is let in or refused by its headers alone, before anything of it is read.

A web page must not reach a loopback service, so other hosts and origins are refused there; beyond loopback a
token is demanded. Knows no engine.
"""

import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from worker.answers import refusal

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_HERE: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
"""A Host header of this machine; not what only looks like one (`evil@localhost`, `localhost/evil`)."""
_HERE_PAGE: Final = re.compile(rf"https?://{_HERE.pattern}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Doors:
    """Who may come in, from the address that the service listens on."""

    host: str = "127.0.0.1"
    api_token: str | None = field(default=None, repr=False)

    @property
    def on_loopback(self) -> bool:
        return self.host in LOOPBACK

    def refuse(self, request: Request) -> Response | None:
        """Return the refusal of a request by its headers alone; None lets it in."""
        if not self.on_loopback:
            return (
                None if self._token_fits(request) else refusal(401, "give the token: Authorization: Bearer")
            )
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if len(hosts) != 1 or not _HERE.fullmatch(hosts[0]):
            return refusal(403, "this engine answers to 127.0.0.1 and localhost only")
        if len(origins) > 1 or not all(_HERE_PAGE.fullmatch(origin) for origin in origins):
            return refusal(403, "this engine does not answer to web pages from elsewhere")
        return None

    def _token_fits(self, request: Request) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        return self.api_token is not None and hmac.compare_digest(given.encode(), self.api_token.encode())
