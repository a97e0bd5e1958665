"""The engine's next slot, as a puller and an engine speak of it over loopback HTTP."""

from typing import Annotated, Final

from pydantic import Field

from queue_schemas.base import Asked, Told
from queue_schemas.results import EngineReady

RESERVATION_HEADER: Final = "H3-Reservation"
"""`POST /generate` presents the reservation in this header: it is no field of the job."""
RESERVATION_GONE_STATUS: Final = 410
"""HTTP status for a lost reservation: what is busy now (503) may be free later, this never is."""
_TOKEN = r"^[0-9a-f]{32}$"


class Reservation(Told):
    """The answer of every call to `/reserve`: who holds the slot, and for how long."""

    reservation: Annotated[str, Field(pattern=_TOKEN)]
    """Random; whoever knows it holds the slot."""
    seconds: float
    """Left until the engine gives the slot to somebody else, unless it is confirmed or renewed before."""


class Confirmation(Reservation):
    """The answer of `/reserve/confirm`: with it the caller knows the engine that it prepares for."""

    engine: EngineReady


class ReservationRequest(Asked):
    """The body of `/reserve/confirm`, `/reserve/renew` and `/reserve/release`."""

    reservation: Annotated[str, Field(pattern=_TOKEN)]
    run_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Of the claimed run; `confirm` needs it."""
