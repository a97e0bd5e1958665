"""A puller's side of the engine's next slot: reserved before a claim, confirmed by it, kept while preparing.

    with SlotDoor(address) as door:          # in the puller, once
        slot = door.reserve()                # None: the slot is closed or the engine away; ask again soon
        ... claim; door.release(slot) when there was nothing, else door.confirm(slot, run_id) ...

    with kept(address, slot):                # in the job process, while it prepares
        ... fetch ...
    engine.generate(..., reservation=slot)   # ReservationLostError: give the job back, no attempt used

A claim that dies in between costs nothing: an unconfirmed slot is free after 2 s, a kept one 15 s after its
last renewal. The engine refuses to keep it for more than 120 s.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

from worker.engine_client import EngineAddress, EngineClient
from worker.errors import EngineAnswerError, EngineLostError, EngineStalledError, SlotClosedError, WorkerError

log = logging.getLogger(__name__)

RENEW_SECONDS: Final = 4.0
"""A third of what the engine waits for, so that two calls may fail."""


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
        """Return a reservation, good for 2 s; None while the slot is closed or no engine answers."""
        try:
            return self._engine.reserve().reservation
        except SlotClosedError:
            return None
        except (EngineLostError, EngineStalledError, EngineAnswerError) as error:
            log.debug("no slot: %s", error)
            return None

    def confirm(self, slot: str, *, run_id: str) -> None:
        """Keep the slot for a claimed run; ReservationLostError and EngineLostError: give the run back."""
        self._engine.confirm(slot, run_id=run_id)

    def release(self, slot: str) -> None:
        """Give back a slot for which there was no run, or whose run needs no engine."""
        try:
            self._engine.release(slot)
        except WorkerError as error:  # it runs out by itself
            log.debug("slot not given back: %s", error)


@contextmanager
def kept(address: EngineAddress, slot: str, *, every_seconds: float = RENEW_SECONDS) -> Iterator[None]:
    """Renew a confirmed slot from a thread while the block prepares the job.

    A slot that is lost meanwhile shows when it is presented: preparing is stopped by nobody.
    """
    done = threading.Event()

    def renew() -> None:
        while not done.wait(every_seconds):
            try:
                with EngineClient(address) as engine:  # not before it is needed: most jobs are quick
                    engine.renew(slot)
            except WorkerError as error:
                log.warning("slot not renewed: %s", error)

    thread = threading.Thread(target=renew, name="slot", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
