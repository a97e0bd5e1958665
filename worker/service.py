"""HTTP over an engine: `/ready`, films (`/generate`, `/outputs`), files (`/references`), slots (`/reserve`).

The event loop never waits for the GPU or the encoder: each generation blocks a thread of its own. A caller
that goes away cancels its job at the next step; the engine stays busy until its GPU thread has returned.
Requests are refused before the body is read where that is possible: by `doors`, other content types, bodies
over the limit. What a request costs before it has a seat (fetching its files, a dry run) is done in lanes of
few threads, and refused when too many wait.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
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
from queue_schemas.references import is_link
from queue_schemas.requests import GenerateRequest, load_json_object, parse_request
from queue_schemas.reservations import RESERVATION_HEADER, Reservation, ReservationRequest
from queue_schemas.results import GenerateResult
from worker.answers import failed, failure, refusal, told
from worker.doors import Doors
from worker.engine import SEATS, Engine
from worker.film_service import serve_film
from worker.gathering import Gathered, gather
from worker.lane import Lane
from worker.upload_service import receive_reference

NDJSON: Final = "application/x-ndjson"
_WAITING: Final = 8
"""Callers that may use or wait for one lane."""


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
class _Lanes:
    """Where requests wait before they have a seat."""

    uploads: Lane = field(default_factory=lambda: Lane(threads=2, most=_WAITING, what="taking of files"))
    files: Lane = field(default_factory=lambda: Lane(threads=2, most=_WAITING, what="reading of files"))
    links: Lane = field(default_factory=lambda: Lane(threads=2, most=_WAITING, what="fetching of links"))
    """Apart, since slow links of others must not keep a puller's job, whose files are here."""
    checks: Lane = field(default_factory=lambda: Lane(threads=1, most=_WAITING, what="checking of requests"))


def make_app(slot: EngineSlot, *, doors: Doors) -> Starlette:
    """Return the service. `slot.engine` may be set later; until then everything answers 503."""
    threads = ThreadPoolExecutor(SEATS, thread_name_prefix="request")
    lanes = _Lanes()

    def entrance(
        answer: Callable[[Request, Engine], Awaitable[Response]],
    ) -> Callable[..., Awaitable[Response]]:
        """Let a request in to an engine that is there; every failure has an answer (the edge)."""

        async def enter(request: Request) -> Response:
            refused = doors.refuse(request)
            if refused is not None:
                return refused
            if slot.engine is None:
                return failure(JobError(code=ErrorCode.BUSY, message=f"still {slot.message}", retryable=True))
            try:
                return await answer(request, slot.engine)
            except HTTPException:
                raise
            except Exception as error:
                return failed(error)

        return enter

    async def ready(request: Request) -> Response:
        return doors.refuse(request) or _ready(slot)

    async def generate(request: Request, engine: Engine) -> Response:
        refused = _refuse_body(request)
        if refused is not None:
            return refused
        reservation = request.headers.get(RESERVATION_HEADER)
        with ExitStack() as held:
            if reservation is not None:  # what is refused keeps no slot
                held.callback(engine.release, reservation)
            parsed = await _read_request(request, engine)
            engine.check(parsed)
            parsed, gathered = await _gather(parsed, engine, lanes=lanes, caller=request)
            held.enter_context(gathered)
            if parsed.delivery.dry_run:
                with lanes.checks.taken():
                    report = await lanes.checks.run(partial(engine.describe, gathered))
                return JSONResponse(report.model_dump(mode="json"))
            engine.take_seat(reservation)
            held.pop_all()  # the call's from here on
        call = _Call(engine, parsed, gathered, loop=asyncio.get_running_loop())
        slot.calls.add(call)
        call.start(threads, request)
        if NDJSON in request.headers.get("accept", ""):
            return StreamingResponse(_events(call), media_type=NDJSON)
        return await _answer(call)

    async def reservation(request: Request, engine: Engine) -> Response:
        refused = _refuse_body(request)
        if refused is not None:
            return refused
        act = request.url.path.rpartition("/")[2]
        return JSONResponse(_reserve(engine, act, await _read_body(request)).model_dump(mode="json"))

    async def upload(request: Request, engine: Engine) -> Response:
        with lanes.uploads.taken():
            return await receive_reference(request, engine.sources.folder, lane=lanes.uploads)

    async def film(request: Request, engine: Engine) -> Response:
        return serve_film(engine.output_root, request.path_params["name"])

    async def unrouted(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path:.80}: {error.detail.lower()}"
        return doors.refuse(request) or refusal(error.status_code, message, headers=error.headers)

    acts = ("/reserve", "/reserve/confirm", "/reserve/renew", "/reserve/release")
    app = Starlette(
        exception_handlers={HTTPException: unrouted},
        routes=[
            Route("/ready", ready, methods=["GET"]),
            Route("/generate", entrance(generate), methods=["POST"]),
            Route("/references", entrance(upload), methods=["POST"]),
            Route("/outputs/{name:path}", entrance(film), methods=["GET"]),
            *(Route(path, entrance(reservation), methods=["POST"]) for path in acts),
        ],
    )
    app.router.redirect_slashes = False  # to wherever the Host header says
    return app


def _ready(slot: EngineSlot) -> Response:
    if slot.engine is None:
        return JSONResponse({"ready": False, "message": slot.message}, status_code=503)
    return JSONResponse(slot.engine.ready().model_dump(mode="json"))


async def _gather(
    request: GenerateRequest, engine: Engine, *, lanes: _Lanes, caller: Request
) -> tuple[GenerateRequest, Gathered]:
    """Have a request's files here, and look at it again now that the job has its identity.

    A caller that goes away has nothing more fetched.
    """
    if not request.job.media:
        return request, Gathered(request.job, request.job)
    lane = lanes.links if any(is_link(medium.source) for medium in request.job.media) else lanes.files
    gone = threading.Event()
    rules = replace(engine.sources.links, wanted=lambda: not gone.is_set())
    watcher = asyncio.create_task(_watch(caller, gone))
    try:
        with lane.taken():
            gathered = await lane.run(partial(gather, request.job, replace(engine.sources, links=rules)))
    finally:
        watcher.cancel()
    try:
        request = request.model_copy(update={"job": gathered.job})
        engine.check(request)
    except BaseException:
        gathered.close()
        raise
    return request, gathered


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

    def __init__(
        self,
        engine: Engine,
        request: GenerateRequest,
        gathered: Gathered,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._engine, self._request, self._gathered, self._loop = engine, request, gathered, loop
        self._cancelled = threading.Event()
        self.progress: asyncio.Queue[ProgressEvent | None] = asyncio.Queue()
        """Events as they come; None after the last one."""
        self._future: Future[GenerateResult] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def start(self, threads: ThreadPoolExecutor, request: Request) -> None:
        """Begin, and cancel when the caller of `request` goes away, also before a response has begun."""
        self._future = threads.submit(self._run)
        self._future.add_done_callback(lambda _: self._post(None))
        self._watcher = asyncio.create_task(_watch(request, self._cancelled))

    def _run(self) -> GenerateResult:
        with self._gathered as gathered:
            return self._engine.generate_seated(
                self._request, gathered, on_event=self._post, cancelled=self._cancelled.is_set
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
            return ErrorEvent(error=told(error))
        return ResultEvent(result=self._future.result().model_dump(mode="json"))


async def _watch(caller: Request, gone: threading.Event) -> None:
    """Set `gone` when the caller goes away; its body has been read."""
    while (await caller.receive())["type"] != "http.disconnect":
        pass
    gone.set()


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


Loader = Callable[[Callable[[str], None]], Engine]
"""Loads the engine, telling what it is doing."""
