"""A puller's side of the engine's next slot: reserved before a claim, confirmed by it, kept while preparing.

    with SlotDoor(address) as door:          # in the puller, once
        token = door.reserve()               # None: the slot is closed or the engine away; ask again soon
        ... claim; door.release(token) when there was nothing, else slot = door.confirm(token, run_id=...) ...
        ... fork; door.renew(slot) every RENEW_SECONDS until it is False ...

    engine.generate(..., reservation=slot.token)   # ReservationLostError: give the job back, no attempt used

A claim that dies in between costs nothing: an unconfirmed slot is free after 2 s, a confirmed one 15 s after
its last renewal. The engine refuses to keep it for more than 120 s.
"""

import logging
from dataclasses import dataclass
from typing import Final, Self

from queue_schemas.results import EngineReady
from worker.engine_client import EngineAddress, EngineClient
from worker.errors import (
    EngineAnswerError,
    EngineLostError,
    EngineStalledError,
    ReservationLostError,
    SlotClosedError,
    WorkerError,
)

log = logging.getLogger(__name__)

RENEW_SECONDS: Final = 4.0
"""A third of what the engine waits for, so that two calls may fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The engine's next slot, confirmed for one run."""

    token: str
    engine: EngineReady
    """The engine as it was then."""


def give_back(address: EngineAddress, slot: Slot | None) -> None:
    """Give back, from a job process, the slot of a job that needs no engine after all."""
    if slot is not None:
        with SlotDoor(address) as door:
            door.release(slot.token)


class SlotDoor:
    """The puller's connection to its engine, for reservations only; it must not be used in a forked child."""

    def __init__(self, address: EngineAddress) -> None:
        self._engine = EngineClient(address)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._engine.__exit__()

    def reserve(self) -> str | None:
        """Return a reservation's token, good for 2 s; None while the slot is closed or no engine answers."""
        try:
            return self._engine.reserve().reservation
        except SlotClosedError:
            return None
        except (EngineLostError, EngineStalledError, EngineAnswerError) as error:
            log.debug("no slot: %s", error)
            return None

    def confirm(self, token: str, *, run_id: str) -> Slot:
        """Keep the slot for a claimed run; ReservationLostError and EngineLostError: give the run back."""
        return Slot(token=token, engine=self._engine.confirm(token, run_id=run_id).engine)

    def renew(self, slot: Slot) -> bool:
        """Keep a confirmed slot longer; False when it is gone, as it is once the job has used it.

        Whoever lost it too early learns that when it is presented: preparing is stopped by nobody.
        """
        try:
            self._engine.renew(slot.token)
        except ReservationLostError:
            return False
        except WorkerError as error:
            log.warning("slot not renewed: %s", error)
        return True

    def release(self, token: str) -> None:
        """Give back a slot for which there was no run, or whose run needs no engine."""
        try:
            self._engine.release(token)
        except WorkerError as error:  # it runs out by itself
            log.debug("slot not given back: %s", error)
