"""Films that are made and not stored yet: kept below the engine's output root, so that none is made again.

    <root>/spool/<run_id>-<generation>/{video.mp4, attempt.json}

A film comes here when the store could not take it at once. The job process that made it goes on trying from
here; if that process dies or gives up, the next attempt at the same run on this node takes the film instead
of generating. Knows no store and no queue.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from broker.errors import QueueEntryError
from broker.keys import entry_id, parse_entry_id
from queue_schemas.base import Told
from queue_schemas.results import GenerateResult
from storage.errors import StorageUnavailableError
from storage.layout import FILM
from storage.local import write_whole
from worker.own_names import SPOOL

log = logging.getLogger(__name__)

FULL_FILMS: Final = 8
"""From here on a node whose store takes nothing begins no other film."""
_ATTEMPT: Final = "attempt.json"


class MadeBy(Told):
    """The content of attempt.json: who made the film, and what the engine said of it."""

    run_id: str
    generation: int
    attempt: int
    result: GenerateResult


@dataclass(frozen=True, slots=True)
class MadeFilm:
    """A film on this machine, in the spool or not yet."""

    place: Path
    made_by: MadeBy


class Spool:
    """The films kept below one engine's output root."""

    def __init__(self, root: Path) -> None:
        self._folder = root / SPOOL

    def keep(self, film: MadeFilm) -> MadeFilm:
        """Move a film here. Where the disk takes no more it stays where it is, for this attempt only."""
        made_by = film.made_by
        folder = self._of(made_by.run_id, made_by.generation)
        try:
            write_whole(folder / _ATTEMPT, made_by.model_dump_json().encode())
            film.place.replace(folder / FILM)
        except (StorageUnavailableError, OSError) as error:
            log.warning("run %s: its film is not in the spool: %s", made_by.run_id, error)
            return film
        return MadeFilm(folder / FILM, made_by)

    def holds(self, film: MadeFilm) -> bool:
        return film.place.is_relative_to(self._folder)

    def find(self, run_id: str, generation: int, *, job_id: str) -> MadeFilm | None:
        """Return the film that an earlier attempt at this run left, if it is whole; remove it otherwise."""
        folder = self._of(run_id, generation)
        if not folder.is_dir():
            return None
        try:
            made_by = MadeBy.model_validate_json((folder / _ATTEMPT).read_bytes())
            is_ours = (made_by.run_id, made_by.generation, made_by.result.job_id) == (
                run_id,
                generation,
                job_id,
            )
            if is_ours and _is_whole(folder / FILM, made_by.result):
                return MadeFilm(folder / FILM, made_by)
        except (OSError, ValidationError) as error:
            log.warning("run %s: what the spool has of it cannot be read: %s", run_id, type(error).__name__)
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def remove(self, run_id: str, generation: int) -> None:
        """Let go of a run's film, if there is one."""
        shutil.rmtree(self._of(run_id, generation), ignore_errors=True)

    def tidy(self, has_ended: Callable[[str, int], bool]) -> None:
        """Remove films of runs that have ended without them, by another node or by being cancelled."""
        for run_id, generation in self._runs():
            if has_ended(run_id, generation):
                log.info("run %s: ended without its film in the spool", run_id)
                self.remove(run_id, generation)

    def is_full(self) -> bool:
        return sum(1 for _ in self._runs()) >= FULL_FILMS

    def _runs(self) -> Iterator[tuple[str, int]]:
        if not self._folder.is_dir():
            return
        for folder in sorted(self._folder.iterdir()):
            try:
                yield parse_entry_id(folder.name)
            except QueueEntryError:  # nothing that this class has made
                continue

    def _of(self, run_id: str, generation: int) -> Path:
        return self._folder / entry_id(run_id, generation)


def _is_whole(film: Path, result: GenerateResult) -> bool:
    """Compare size and hash with what the engine said: the node may have lost its power since."""
    with film.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return [(film.stat().st_size, sha256)] == [(file.size_bytes, file.sha256) for file in result.files]
