"""HTTP over an engine: `GET /ready`, `POST /generate` (JSON, or NDJSON events when asked), `POST /reserve`.

The event loop never waits for the GPU or the encoder: each generation blocks a thread of its own. A caller
that goes away cancels its job at the next step; the engine stays busy until its GPU thread has returned.
Requests are refused before the body is read where that is possible: other hosts and origins (a web page must
not reach a loopback service), other content types, bodies over the limit, and, beyond loopback, a missing
token.
"""

import asyncio
import hmac
import logging
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from queue_schemas import limits
from queue_schemas.errors import ErrorCode, InvalidRequestError, explain
from queue_schemas.events import ErrorEvent, JobError, ProgressEvent, ResultEvent
from queue_schemas.requests import GenerateRequest, load_json_object, parse_request
from queue_schemas.reservations import (
    RESERVATION_GONE_STATUS,
    RESERVATION_HEADER,
    Reservation,
    ReservationRequest,
)
from queue_schemas.results import GenerateResult
from worker.engine import SEATS, Engine
from worker.errors import ReservationLostError, job_error

log = logging.getLogger(__name__)

NDJSON: Final = "application/x-ndjson"
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_HERE: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
"""A Host header of this machine; not what only looks like one (`evil@localhost`, `localhost/evil`)."""
_HERE_PAGE: Final = re.compile(rf"https?://{_HERE.pattern}", re.IGNORECASE)
_STATUS: Final = {
    ErrorCode.INVALID_REQUEST: 422,
    ErrorCode.NOT_IMPLEMENTED: 501,
    ErrorCode.CHECKPOINT_MISMATCH: 409,
    ErrorCode.ATTENTION_UNAVAILABLE: 409,
    ErrorCode.CANCELLED: 409,
    ErrorCode.OUTPUT_REJECTED: 500,
    ErrorCode.OUT_OF_MEMORY: 503,
    ErrorCode.BUSY: 503,
    ErrorCode.STORAGE_UNAVAILABLE: 503,
}


@dataclass(slots=True)
class EngineSlot:
    """Where the service finds its engine, once it is loaded, and until then what it is waiting for."""

    engine: Engine | None = None
    message: str = "starting"
    calls: "WeakSet[_Call]" = field(default_factory=WeakSet)

    def interrupt(self) -> None:
        """Answer every open generation now, and let it end at its next step: this engine is about to end.

        Called in the event loop.
        """
        for call in self.calls:
            call.progress.put_nowait(None)


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


def make_app(slot: EngineSlot, *, doors: Doors) -> Starlette:
    """Return the service. `slot.engine` may be set later; until then everything answers 503."""
    threads = ThreadPoolExecutor(SEATS, thread_name_prefix="request")

    async def ready(request: Request) -> Response:
        refused = doors.refuse(request)
        if refused is not None:
            return refused
        if slot.engine is None:
            return JSONResponse({"ready": False, "message": slot.message}, status_code=503)
        return JSONResponse(slot.engine.ready().model_dump(mode="json"))

    async def generate(request: Request) -> Response:
        refused = doors.refuse(request) or _refuse_body(request)
        if refused is not None:
            return refused
        if slot.engine is None:
            return failure(JobError(code=ErrorCode.BUSY, message=f"still {slot.message}", retryable=True))
        try:
            parsed = await _read_request(request, slot.engine)
            slot.engine.check(parsed)
            if parsed.delivery.dry_run:
                return JSONResponse(slot.engine.describe(parsed).model_dump(mode="json"))
            slot.engine.take_seat(request.headers.get(RESERVATION_HEADER))
        except Exception as error:  # the edge of the process: every failure has an answer
            return _failed(error)
        call = _Call(slot.engine, parsed, loop=asyncio.get_running_loop())
        slot.calls.add(call)
        call.start(threads, request)
        if NDJSON in request.headers.get("accept", ""):
            return StreamingResponse(_events(call), media_type=NDJSON)
        return await _answer(call)

    async def reservation(request: Request) -> Response:
        refused = doors.refuse(request) or _refuse_body(request)
        if refused is not None:
            return refused
        if slot.engine is None:
            return failure(JobError(code=ErrorCode.BUSY, message=f"still {slot.message}", retryable=True))
        try:
            act = request.url.path.rpartition("/")[2]
            answer = _reserve(slot.engine, act, await _read_body(request))
        except Exception as error:  # the edge of the process: every failure has an answer
            return _failed(error)
        return JSONResponse(answer.model_dump(mode="json"))

    acts = ("/reserve", "/reserve/confirm", "/reserve/renew", "/reserve/release")

    async def unrouted(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path:.80}: {error.detail.lower()}"
        return doors.refuse(request) or refusal(error.status_code, message, headers=error.headers)

    app = Starlette(
        exception_handlers={HTTPException: unrouted},
        routes=[
            Route("/ready", ready, methods=["GET"]),
            Route("/generate", generate, methods=["POST"]),
            *(Route(path, reservation, methods=["POST"]) for path in acts),
        ],
    )
    app.router.redirect_slashes = False  # to wherever the Host header says
    return app


def _reserve(engine: Engine, act: str, body: bytes) -> Reservation:
    """Do one of the four acts on the next slot."""
    if act == "reserve":
        return engine.reserve()
    try:
        asked = ReservationRequest.model_validate_json(body)
    except ValidationError as error:
        raise InvalidRequestError(explain(error)) from None
    if act == "renew":
        return engine.renew(asked.reservation)
    if act == "release":
        return engine.release(asked.reservation)
    if asked.run_id is None:
        raise InvalidRequestError("field 'run_id' is missing")
    return engine.confirm(asked.reservation, asked.run_id)


_INTERRUPTED: Final = JobError(code=ErrorCode.ENGINE_LOST, message="the engine is ending", retryable=True)


class _Call:
    """One seated generation on a thread of its own, seen from the event loop."""

    def __init__(self, engine: Engine, request: GenerateRequest, *, loop: asyncio.AbstractEventLoop) -> None:
        self._engine, self._request, self._loop = engine, request, loop
        self._cancelled = threading.Event()
        self.progress: asyncio.Queue[ProgressEvent | None] = asyncio.Queue()
        """Events as they come; None after the last one."""
        self._future: Future[GenerateResult] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def start(self, threads: ThreadPoolExecutor, request: Request) -> None:
        """Begin, and cancel when the caller of `request` goes away, also before a response has begun."""
        self._future = threads.submit(self._run)
        self._future.add_done_callback(lambda _: self._post(None))
        self._watcher = asyncio.create_task(self._watch(request))

    def _run(self) -> GenerateResult:
        return self._engine.generate_seated(
            self._request, on_event=self._post, cancelled=self._cancelled.is_set
        )

    def _post(self, event: ProgressEvent | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self.progress.put_nowait, event)
        except RuntimeError:  # the service has stopped; nobody listens any more
            self._cancelled.set()

    def leave(self) -> None:
        """The response is over, one way or the other: whatever still runs ends at its next step."""
        self._cancelled.set()
        if self._watcher is not None:
            self._watcher.cancel()

    def outcome(self) -> ResultEvent | ErrorEvent:
        """Return how it ended; call after the None of `progress`."""
        assert self._future is not None
        if not self._future.done():
            return ErrorEvent(error=_INTERRUPTED)
        error = self._future.exception()
        if error is not None:
            return ErrorEvent(error=_told(error))
        return ResultEvent(result=self._future.result().model_dump(mode="json"))

    async def _watch(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self._cancelled.set()


async def _events(call: _Call) -> AsyncIterator[bytes]:
    try:
        while (event := await call.progress.get()) is not None:
            yield event.model_dump_json().encode() + b"\n"
        yield call.outcome().model_dump_json().encode() + b"\n"
    finally:  # also when the caller went away and the response was given up
        call.leave()


async def _answer(call: _Call) -> Response:
    try:
        while await call.progress.get() is not None:
            pass
    finally:
        call.leave()
    outcome = call.outcome()
    return failure(outcome.error) if isinstance(outcome, ErrorEvent) else JSONResponse(outcome.result)


async def _read_request(request: Request, engine: Engine) -> GenerateRequest:
    fields = load_json_object(await _read_body(request), limit_bytes=limits.BODY_BYTES)
    return parse_request(fields, checkpoint=engine.checkpoint, loras=engine.loras)


async def _read_body(request: Request) -> bytes:
    """Return the body, or its beginning where it is over the limit: then it is too long for any reader."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limits.BODY_BYTES:  # no Content-Length, or a false one
                break
    except ClientDisconnect:
        raise InvalidRequestError("the body broke off") from None
    return bytes(body)


def _refuse_body(request: Request) -> Response | None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        return refusal(415, "send the job as Content-Type: application/json")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limits.BODY_BYTES:
        return refusal(413, f"{int(length):,} bytes; at most {limits.BODY_BYTES:,} are accepted")
    return None


def _told(error: BaseException) -> JobError:
    found = job_error(error)
    if found.code is ErrorCode.INTERNAL:
        log.error("unexpected %s", type(error).__name__, exc_info=error)
    return found


def _failed(error: Exception) -> Response:
    """Answer with what went wrong; a lost reservation has a status of its own, which tells it from busy."""
    gone = isinstance(error, ReservationLostError)
    return failure(_told(error), status=RESERVATION_GONE_STATUS if gone else None)


def failure(error: JobError, *, status: int | None = None) -> Response:
    """Return an error as JSON under the status that fits its code, or under the one that is given."""
    status = status or _STATUS.get(error.code, 500)
    return JSONResponse({"error": error.model_dump(mode="json")}, status_code=status)


def refusal(status: int, message: str, *, headers: Mapping[str, str] | None = None) -> Response:
    error = JobError(code=ErrorCode.INVALID_REQUEST, message=message, retryable=False)
    return JSONResponse({"error": error.model_dump(mode="json")}, status_code=status, headers=headers)


Loader = Callable[[Callable[[str], None]], Engine]
"""Loads the engine, telling what it is doing."""
