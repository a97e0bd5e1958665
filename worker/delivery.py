"""From a finished film to the store: at once, or over the spool for as long as the store is away."""

import time
from collections.abc import Callable

from queue_schemas.events import ProgressEvent, Stage
from storage.base import ArtifactStore
from storage.errors import StorageUnavailableError
from storage.layout import FILM
from worker.attempt import Attempt
from worker.output_root import prune
from worker.spool import MadeFilm, Spool
from worker.storing import until_stored


def deliver(
    attempt: Attempt,
    film: MadeFilm,
    *,
    store: ArtifactStore,
    spool: Spool,
    on_event: Callable[[ProgressEvent], None],
    seconds: float,
) -> None:
    """Store an attempt's film; one that the store does not take now is kept in the spool meanwhile.

    Raises StorageUnavailableError after so many seconds: the film stays in the spool.
    """

    def upload() -> None:
        started = time.monotonic()
        attempt.files["video"] = store.put_file(attempt.key(FILM), film.place)
        attempt.upload_seconds = time.monotonic() - started

    def show() -> None:
        on_event(ProgressEvent(stage=Stage.UPLOAD))

    show()
    made, first_place = time.monotonic(), film.place
    try:
        upload()
    except StorageUnavailableError:
        film = spool.keep(film)
        until_stored(upload, seconds=seconds, what=f"job {attempt.run_id}", on_wait=show)
        note(attempt, f"the film waited {time.monotonic() - made:.0f} s for its store")
    if attempt.total_seconds is not None and attempt.upload_seconds is not None:
        attempt.total_seconds += attempt.upload_seconds
    if not spool.holds(film):  # there it stays until the manifest is written
        film.place.unlink(missing_ok=True)
    prune(first_place.parent, attempt.output_root)


def note(attempt: Attempt, text: str) -> None:
    """Have the record say something odd about the film."""
    assert attempt.result is not None, "the film is made"
    attempt.result = attempt.result.model_copy(update={"notes": [*attempt.result.notes, text]})
