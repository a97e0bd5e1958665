"""The job process's side of the engine's HTTP: wait for it, hand it one job, relay its events.

Loopback only in practice, so no proxies from the environment and no TLS set-up (40 ms per forked process).
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Self

import httpx
from pydantic import ValidationError

from queue_schemas import limits
from queue_schemas.errors import ErrorCode
from queue_schemas.events import EVENT_ADAPTER, ErrorEvent, JobError, ProgressEvent
from queue_schemas.reservations import RESERVATION_GONE_STATUS, RESERVATION_HEADER, Reservation
from queue_schemas.results import EngineReady, GenerateResult
from worker.errors import (
    EngineAnswerError,
    EngineBusyError,
    EngineLostError,
    EngineNotReadyError,
    EngineStalledError,
    ReservationLostError,
    SlotClosedError,
)

SILENCE_SECONDS: Final = 1800.0
"""Longest wait for the next event; a step of a full-size film on a CPU takes minutes."""
_POLL_SECONDS: Final = 0.25
_RESERVE_SECONDS: Final = 5.0
"""An engine answers such a call in a millisecond; one that does not is as good as gone."""


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where the engine listens, and the token it may demand."""

    url: str
    api_token: str | None = field(default=None, repr=False)


class EngineClient:
    """One connection to an engine; use as a context manager."""

    def __init__(self, address: EngineAddress, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        headers = {"Authorization": f"Bearer {address.api_token}"} if address.api_token else {}
        self._address = address
        self._http = httpx.Client(
            base_url=address.url,
            headers=headers,
            timeout=httpx.Timeout(10.0, read=silence_seconds),
            trust_env=False,
            verify=address.url.startswith("https://"),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ready(self, *, seconds: float = 10.0) -> EngineReady:
        """Return what the engine says about itself. Raises EngineNotReadyError, EngineLostError."""
        try:
            with self._translated():
                answer = self._http.get("/ready", timeout=seconds)
        except EngineStalledError:
            raise EngineNotReadyError(self._address.url, reason=f"no answer in {seconds:.0f} s") from None
        if answer.status_code != 200:
            raise EngineNotReadyError(self._address.url, reason=_reason(answer))
        try:
            return EngineReady.model_validate_json(answer.content)
        except ValidationError:
            raise EngineLostError(f"what answers at {self._address.url} is no engine") from None

    def wait_ready(self, *, seconds: float) -> EngineReady:
        """Return as `ready` does, waiting up to `seconds` for an engine that starts or restarts."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.ready()
            except EngineLostError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def reserve(self) -> Reservation:
        """Take the engine's next slot for a moment. Raises SlotClosedError, EngineLostError."""
        return self._reservation("/reserve", {})

    def confirm(self, reservation: str, *, run_id: str) -> Reservation:
        """Keep the slot for a claimed run. Raises ReservationLostError, EngineLostError."""
        return self._reservation("/reserve/confirm", {"reservation": reservation, "run_id": run_id})

    def renew(self, reservation: str) -> Reservation:
        """Keep a confirmed slot longer. Raises ReservationLostError, EngineLostError."""
        return self._reservation("/reserve/renew", {"reservation": reservation})

    def release(self, reservation: str) -> None:
        """Give the slot back, whoever holds it by now. Raises EngineLostError."""
        self._reservation("/reserve/release", {"reservation": reservation})

    def _reservation(self, path: str, body: Mapping[str, str]) -> Reservation:
        with self._translated():
            answer = self._http.post(path, json=body, timeout=_RESERVE_SECONDS)
            if answer.status_code == 200:
                return Reservation.model_validate_json(answer.content)
        _raise_reservation_error(answer)

    def generate(
        self,
        body: Mapping[str, Any],
        *,
        on_event: Callable[[ProgressEvent], None],
        busy_seconds: float,
        reservation: str | None = None,
    ) -> GenerateResult:
        """Have one job made; a busy engine is asked again for up to `busy_seconds`.

        With a reservation the engine has kept a seat. Raises ReservationLostError when it is gone,
        EngineAnswerError with the engine's own error, EngineLostError, EngineStalledError.
        """
        deadline = time.monotonic() + busy_seconds
        while True:
            try:
                return self._generate_once(body, on_event, reservation=reservation)
            except EngineBusyError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def _generate_once(
        self, body: Mapping[str, Any], on_event: Callable[[ProgressEvent], None], *, reservation: str | None
    ) -> GenerateResult:
        headers = {"Accept": "application/x-ndjson"}
        if reservation is not None:
            headers[RESERVATION_HEADER] = reservation
        with self._translated(), self._http.stream("POST", "/generate", json=body, headers=headers) as answer:
            if answer.status_code != 200:
                answer.read()
                error = _error_of(answer)
                if answer.status_code == RESERVATION_GONE_STATUS:
                    raise ReservationLostError(error.message)
                raise EngineBusyError if error.code is ErrorCode.BUSY else EngineAnswerError(error)
            for line in _lines(answer):
                event = EVENT_ADAPTER.validate_json(line)
                if isinstance(event, ProgressEvent):
                    on_event(event)
                elif isinstance(event, ErrorEvent):
                    raise EngineAnswerError(event.error)
                else:
                    return GenerateResult.model_validate(event.result)
        raise EngineLostError("the engine ended in the middle of this job")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except httpx.ReadTimeout:
            raise EngineStalledError("the engine showed no progress for too long") from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise EngineLostError(f"no engine answers at {self._address.url} ({error})") from None
        except httpx.HTTPError as error:
            raise EngineLostError(f"the engine went away in the middle of this job ({error})") from None
        except ValidationError:
            raise EngineLostError("the engine sent an event that this version cannot read") from None


def _lines(answer: httpx.Response) -> Iterator[str]:
    for line in answer.iter_lines():
        # The result's size is bounded by its own limit; no line of a sane engine comes near either.
        if len(line) > limits.RESULT_BYTES + limits.EVENT_BYTES:
            raise EngineLostError("the engine sent an oversized event")
        if line:
            yield line


def _raise_reservation_error(answer: httpx.Response) -> NoReturn:
    error = _error_of(answer)
    if answer.status_code == RESERVATION_GONE_STATUS:
        raise ReservationLostError(error.message)
    if error.code is ErrorCode.BUSY:
        raise SlotClosedError(error.message)
    raise EngineAnswerError(error)


def _error_of(answer: httpx.Response) -> JobError:
    try:
        return JobError.model_validate(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        message = f"the engine answered HTTP {answer.status_code}"
        return JobError(code=ErrorCode.ENGINE_LOST, message=message, retryable=True)


def _reason(answer: httpx.Response) -> str:
    try:
        body = answer.json()
        return str(body.get("message") or body["error"]["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"HTTP {answer.status_code}"
