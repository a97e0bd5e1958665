"""The files that jobs name, found and hashed before anything is queued, and put into the store once each.

A local file or a link becomes a key in the job, whatever it was called, so that a node never depends on where
it came from, and no link's query is kept anywhere.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self

from client.errors import UploadError
from client.handle import AnyJob
from client.media_kinds import check_lengths, check_stored_kind, path_of
from client.transfers import Move, Watch, ignore, move_all
from client.uploads import FoundFile, called, check_stored, put_file, read_file
from queue_schemas.references import KIND_BYTES, MediaSource, Medium, is_link, is_local, shown_source
from storage.base import ArtifactStore
from storage.errors import ArtifactMissingError, LinkError, LinkRefusedError
from storage.links import DEFAULT_RULES, LinkRules, check_link, fetch_link

_CHUNK_BYTES: Final = 1024 * 1024


class MediaFiles:
    """Every file that some jobs name, looked at once; a context manager, which removes what it downloaded."""

    def __init__(
        self,
        store: ArtifactStore | None,
        *,
        fetch: bool = True,
        rules: LinkRules = DEFAULT_RULES,
        watch: Watch = ignore,
    ) -> None:
        """`store` is where keys lie. `fetch` allows links, by `rules`."""
        self._store, self._fetch, self._rules, self._watch = store, fetch, rules, watch
        self._found: dict[tuple[str, str], FoundFile] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def settled(self, jobs: Sequence[AnyJob]) -> list[AnyJob]:
        """Return the jobs with every file by key and hash; nothing is stored yet.

        Raises UploadError, StorageUnavailableError.
        """
        named = {_key(medium): medium for job in reversed(jobs) for medium in reversed(job.media)}
        media = [medium for key, medium in reversed(named.items()) if key not in self._found]
        links = [medium for medium in media if is_link(medium.source)]
        self._check_links(links)
        for medium in media:
            if is_local(medium.source):
                self._found[_key(medium)] = read_file(medium, path_of(medium.source))
            elif medium not in links:
                self._found[_key(medium)] = self._look_up(medium)
        self._download(links)
        for together in {tuple(job.media): None for job in jobs if job.media}:
            check_lengths([(m, shown_source(m.source), self._found[_key(m)].seconds) for m in together])
        return [job.with_media(self._settle) if job.media else job for job in jobs]

    def path(self, medium: Medium) -> Path:
        """Return where a file lies on this machine; what lies in the store is copied. Raises UploadError."""
        file = self._found[_key(medium)]
        return file.path or self._copied(file)

    def upload(self, store: ArtifactStore, jobs: Iterable[AnyJob]) -> None:
        """Put what these settled jobs need into the store, once per content.

        Raises UploadError, StorageUnavailableError.
        """
        wanted = {medium.sha256 for job in jobs for medium in job.media}
        files = {f.key: f for f in self._found.values() if f.path is not None and f.sha256 in wanted}
        moves = [
            Move(name=called(file.medium), size_bytes=file.size_bytes, act=partial(put_file, store, file))
            for file in files.values()
        ]
        move_all(moves, verb="uploading", watch=self._watch)

    def _settle(self, medium: Medium) -> MediaSource:
        file = self._found[_key(medium)]
        return MediaSource(source=file.key, sha256=file.sha256)

    def _look_up(self, medium: Medium) -> FoundFile:
        check_stored_kind(medium.source, medium.kind, called=called(medium))
        if self._store is None:
            raise UploadError(f"{called(medium)} lies in a store; name it by --storage")
        check_stored(self._store, [medium])
        assert medium.sha256 is not None  # the schema reads it from the key
        return FoundFile(medium=medium, key=medium.source, sha256=medium.sha256)

    def _copied(self, file: FoundFile) -> Path:
        assert self._store is not None  # it was looked up there
        target = self._temporary() / Path(file.key).name
        try:
            if not target.exists():
                with self._store.open(file.key) as source, target.open("xb") as sink:
                    shutil.copyfileobj(source, sink, _CHUNK_BYTES)
        except ArtifactMissingError as error:
            raise UploadError(f"{called(file.medium)}: {error}") from None
        return target

    def _check_links(self, links: Sequence[Medium]) -> None:
        for medium in links:
            if not self._fetch:
                raise UploadError(
                    f"{called(medium)} is a link, and --no-fetch follows none; name the file itself"
                )
            try:
                check_link(medium.source)
            except LinkRefusedError as error:
                raise UploadError(f"{called(medium)}: {error.fault}") from None

    def _download(self, links: Sequence[Medium]) -> None:
        moves = [
            Move(name=called(medium), size_bytes=None, act=self._fetching(medium, number))
            for number, medium in enumerate(links)
        ]
        found = move_all(moves, verb="fetching", watch=self._watch)
        for medium, file in zip(links, found, strict=True):
            self._found[_key(medium)] = file

    def _fetching(self, medium: Medium, number: int) -> Callable[[], FoundFile]:
        target = self._temporary() / f"link-{number}"

        def fetch() -> FoundFile:
            try:
                fetch_link(medium.source, to=target, limit_bytes=KIND_BYTES[medium.kind], rules=self._rules)
            except LinkError as error:
                raise UploadError(f"{called(medium)}: {error.fault}") from None
            return read_file(medium, target)

        return fetch

    def _temporary(self) -> Path:
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="h3-references-")
        return Path(self._folder.name)


def _key(medium: Medium) -> tuple[str, str]:
    return medium.source, medium.kind
