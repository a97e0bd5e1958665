"""`POST /references`: one file, streamed into the engine's folder of references: bounded, hashed, looked at.

The body is the file itself, as any type that no form of a web page sends. The answer names the key that a
request then gives as `source`; the same content again gives the same answer.
"""

import asyncio
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from media.errors import ReferenceUnreadableError
from queue_schemas.errors import InvalidRequestError
from queue_schemas.references import KIND_BYTES, KINDS, Kind
from queue_schemas.results import StoredReference
from queue_schemas.text import shortened
from storage.layout import reference_key
from worker.answers import refusal
from worker.lane import Lane
from worker.reference_folder import ReferenceFolder

SECONDS: Final = 600.0
"""How long one upload may take."""
_TYPES: Final = ("image/", "video/", "audio/")
_PART_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Received:
    sha256: str
    size_bytes: int


async def receive_reference(request: Request, folder: ReferenceFolder, *, lane: Lane) -> Response:
    """Take the body of `request` into `folder`; `lane` is where files are written and looked at.

    Raises InvalidRequestError, ReferenceUnreadableError, ReferenceFolderError.
    """
    kind = _kind(request)
    limit = KIND_BYTES[kind] if kind else max(KIND_BYTES.values())
    refused = _refuse(request, limit_bytes=limit)
    if refused is not None:
        return refused
    with folder.receiving() as temporary:
        try:
            async with asyncio.timeout(SECONDS):
                received = await _write(request, temporary, limit_bytes=limit, lane=lane)
        except TimeoutError:
            return refusal(408, f"the file was not here after {SECONDS:.0f} s")
        if received is None:
            return _too_large(limit)
        stored, is_new = await lane.run(lambda: _keep(temporary, received, kind=kind, folder=folder))
    return JSONResponse(stored.model_dump(mode="json"), status_code=201 if is_new else 200)


async def _write(request: Request, to: Path, *, limit_bytes: int, lane: Lane) -> _Received | None:
    """Write the body; None as soon as there is more than the limit."""
    digest, size, part = hashlib.sha256(), 0, bytearray()
    with to.open("xb") as sink:

        def flush() -> None:
            digest.update(part)
            sink.write(part)
            part.clear()

        try:
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit_bytes:  # no Content-Length, or a false one
                    return None
                part += chunk
                if len(part) >= _PART_BYTES:
                    await lane.run(flush)
        except ClientDisconnect:
            raise InvalidRequestError("the file broke off") from None
        await lane.run(flush)
    return _Received(digest.hexdigest(), size)


def _keep(
    temporary: Path, received: _Received, *, kind: Kind | None, folder: ReferenceFolder
) -> tuple[StoredReference, bool]:
    """Look at a file and give it its name; say whether it is new. Raises ReferenceUnreadableError."""
    stored = _look(temporary, received, kind=kind)
    known = folder.hold(received.sha256)
    (known or folder.keep(temporary, received.sha256)).close()
    return stored, known is None


def _look(path: Path, received: _Received, *, kind: Kind | None) -> StoredReference:
    from media.facts import probe_reference  # noqa: PLC0415 - libav and Pillow, for an engine that is asked
    from media.kinds import kind_of_file  # noqa: PLC0415

    try:
        kind = kind or kind_of_file(path)
    except ReferenceUnreadableError as error:
        raise error.named(file="the file") from error.__cause__
    facts = probe_reference(path, kind=kind, name="the file")
    return StoredReference(
        key=reference_key(received.sha256, facts.form.endings[0]),
        sha256=received.sha256,
        size_bytes=received.size_bytes,
        kind=facts.kind,
        form=facts.form.name,
        width=facts.width,
        height=facts.height,
        seconds=facts.seconds,
    )


def _kind(request: Request) -> Kind | None:
    """Return the kind that the caller says it is; None leaves it to the file."""
    asked = request.query_params.get("kind")
    found = next((kind for kind in KINDS if kind == asked), None)
    if asked is not None and found is None:
        raise InvalidRequestError(f"kind: {shortened(repr(asked))} is none of {', '.join(KINDS)}")
    return found


def _refuse(request: Request, *, limit_bytes: int) -> Response | None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/octet-stream" and not content_type.startswith(_TYPES):
        return refusal(
            415, "send the file itself, as image/..., video/..., audio/... or application/octet-stream"
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        return refusal(415, "send the file as it is, without Content-Encoding")
    length = request.headers.get("content-length", "0")
    return _too_large(limit_bytes) if length.isdecimal() and int(length) > limit_bytes else None


def _too_large(limit_bytes: int) -> Response:
    return refusal(
        413, f"the file is larger than the {limit_bytes:,} bytes that are accepted; make it smaller"
    )
