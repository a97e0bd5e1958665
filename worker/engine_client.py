"""The job process's side of the engine's HTTP: wait for it, hand it one job, relay its events.

On urllib3, which boto3 brings along: a call costs a fifth of httpx's CPU time, and every job makes several.
It reads no proxies from the environment.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Self, TypeVar

import urllib3
from pydantic import ValidationError
from urllib3.response import BaseHTTPResponse

from queue_schemas import limits
from queue_schemas.errors import ErrorCode
from queue_schemas.events import EVENT_ADAPTER, ErrorEvent, JobError, ProgressEvent
from queue_schemas.reservations import (
    RESERVATION_GONE_STATUS,
    RESERVATION_HEADER,
    Confirmation,
    Reservation,
)
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
_CONNECT_SECONDS: Final = 10.0
_RESERVE_SECONDS: Final = 5.0
"""An engine answers such a call in a millisecond; one that does not is as good as gone."""
_Answer = TypeVar("_Answer", bound=Reservation)


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """Where the engine listens, and the token it may demand."""

    url: str
    api_token: str | None = field(default=None, repr=False)


class EngineClient:
    """One connection to an engine; use as a context manager."""

    def __init__(self, address: EngineAddress, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._address, self._silence_seconds = address, silence_seconds
        self._headers = {"Authorization": f"Bearer {address.api_token}"} if address.api_token else {}
        self._http = urllib3.connection_from_url(address.url, retries=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ready(self, *, seconds: float = 10.0) -> EngineReady:
        """Return what the engine says about itself. Raises EngineNotReadyError, EngineLostError."""
        try:
            answer = self._call("GET", "/ready", seconds=seconds)
        except EngineStalledError:
            raise EngineNotReadyError(self._address.url, reason=f"no answer in {seconds:.0f} s") from None
        if answer.status != 200:
            raise EngineNotReadyError(self._address.url, reason=_reason(answer))
        try:
            return EngineReady.model_validate_json(answer.data)
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
        return self._reservation(Reservation, "/reserve", {})

    def confirm(self, reservation: str, *, run_id: str) -> Confirmation:
        """Keep the slot for a claimed run. Raises ReservationLostError, EngineLostError."""
        body = {"reservation": reservation, "run_id": run_id}
        return self._reservation(Confirmation, "/reserve/confirm", body)

    def renew(self, reservation: str) -> Reservation:
        """Keep a confirmed slot longer. Raises ReservationLostError, EngineLostError."""
        return self._reservation(Reservation, "/reserve/renew", {"reservation": reservation})

    def release(self, reservation: str) -> None:
        """Give the slot back, whoever holds it by now. Raises EngineLostError."""
        self._reservation(Reservation, "/reserve/release", {"reservation": reservation})

    def _reservation(self, kind: type[_Answer], path: str, body: Mapping[str, str]) -> _Answer:
        answer = self._call("POST", path, seconds=_RESERVE_SECONDS, body=body)
        if answer.status != 200:
            _raise_reservation_error(answer)
        with self._translated():
            return kind.model_validate_json(answer.data)

    def _call(
        self, method: str, path: str, *, seconds: float, body: Mapping[str, str] | None = None
    ) -> BaseHTTPResponse:
        with self._translated():
            return self._http.request(
                method, path, json=body, headers=self._headers, timeout=urllib3.Timeout(seconds)
            )

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
        headers = self._headers | {"Accept": "application/x-ndjson"}
        if reservation is not None:
            headers[RESERVATION_HEADER] = reservation
        with self._translated(), self._stream(body, headers) as answer:
            if answer.status != 200:
                error = _error_of(answer)
                if answer.status == RESERVATION_GONE_STATUS:
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
    def _stream(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Iterator[BaseHTTPResponse]:
        """Yield the answer while it comes; leaving the block ends the connection, and with it the job."""
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=self._silence_seconds)
        answer = self._http.request(
            "POST", "/generate", json=body, headers=headers, timeout=timeout, preload_content=False
        )
        try:
            yield answer
        finally:
            answer.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except urllib3.exceptions.ReadTimeoutError:
            raise EngineStalledError("the engine showed no progress for too long") from None
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
            raise EngineLostError(f"no engine answers at {self._address.url} ({_cause(error)})") from None
        except urllib3.exceptions.HTTPError as error:
            raise EngineLostError(f"the engine went away in the middle of this job ({error})") from None
        except ValidationError:
            raise EngineLostError("the engine sent an event that this version cannot read") from None


def _lines(answer: BaseHTTPResponse) -> Iterator[bytes]:
    pending = b""
    for chunk in answer.stream():
        *lines, pending = (pending + chunk).split(b"\n")
        yield from filter(None, lines)
        # The result's size is bounded by its own limit; no line of a sane engine comes near either.
        if len(pending) > limits.RESULT_BYTES + limits.EVENT_BYTES:
            raise EngineLostError("the engine sent an oversized event")


def _raise_reservation_error(answer: BaseHTTPResponse) -> NoReturn:
    error = _error_of(answer)
    if answer.status == RESERVATION_GONE_STATUS:
        raise ReservationLostError(error.message)
    if error.code is ErrorCode.BUSY:
        raise SlotClosedError(error.message)
    raise EngineAnswerError(error)


def _error_of(answer: BaseHTTPResponse) -> JobError:
    try:
        return JobError.model_validate(json.loads(answer.data)["error"])
    except (ValueError, KeyError, TypeError):
        message = f"the engine answered HTTP {answer.status}"
        return JobError(code=ErrorCode.ENGINE_LOST, message=message, retryable=True)


def _cause(error: Exception) -> str:
    """Return the operating system's words where there are any; urllib3's name its own objects."""
    cause = error.__cause__
    return cause.strerror if isinstance(cause, OSError) and cause.strerror else "no answer in time"


def _reason(answer: BaseHTTPResponse) -> str:
    try:
        body = json.loads(answer.data)
        return str(body.get("message") or body["error"]["message"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"HTTP {answer.status}"
