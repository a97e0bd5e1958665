"""`GET /outputs/{name}`: a finished film below the output root, whole or in ranges, and nothing else."""

import os
import stat
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from queue_schemas.requests import check_output_name
from worker.own_names import reserved_part

_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # a name may be given to another film; the tag tells
    "Cross-Origin-Resource-Policy": "same-origin",  # no page from elsewhere shows it
}


def serve_film(root: Path, name: str) -> Response:
    """Return the answer for the film `name` below `root`, which is absolute and free of links.

    Raises HTTPException 404 for whatever is no film there, whether it exists or not.
    """
    missing = HTTPException(404, "no such film")
    try:
        check_output_name(name)
        descriptor = os.open(root / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (ValueError, OSError):
        raise missing from None
    place = Path(os.path.realpath(f"/proc/self/fd/{descriptor}"))  # of what is open, however it was reached
    is_film = (
        place.suffix == ".mp4" and place.is_relative_to(root) and stat.S_ISREG(os.fstat(descriptor).st_mode)
    )
    if not is_film or reserved_part(str(place.relative_to(root))) is not None:
        os.close(descriptor)
        raise missing
    return _OpenFilm(descriptor)


class _OpenFilm(FileResponse):
    """Sends what is open already: nobody puts another file under the name meanwhile."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(
            f"/proc/self/fd/{descriptor}",
            headers=_HEADERS,
            media_type="video/mp4",
            stat_result=os.fstat(descriptor),
        )
        self._descriptor = descriptor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self._descriptor)
