"""Every file that a job names, from wherever it lies into the node's folder, hash checked, and held there.

The one piece of code for puller and service; what each of them may read from is in `Sources`. A file whose
content is here already is not asked for again. Errors name the place in the job and the file, links without
their query. Knows no media: whether a file is a picture is seen later.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Self
from urllib.parse import urlsplit

from media.errors import ReferenceUnreadableError
from queue_schemas.jobs import Job
from queue_schemas.references import KIND_BYTES, MediaSource, Medium, is_link, is_local, shown_source
from queue_schemas.text import shortened
from storage.base import ArtifactStore
from storage.errors import ArtifactMissingError, LinkRefusedError, LinkUnreachableError
from storage.layout import reference_key
from storage.links import DEFAULT_RULES, LinkRules, fetch_link
from worker.errors import ReferenceUnreachableError
from worker.reference_folder import HeldFile, ReferenceFolder

_CHUNK_BYTES: Final = 1024 * 1024
_SHOWN_CHARACTERS: Final = 200
_SUBMIT_ANEW: Final = "submit the job anew"
_ENDING: Final = re.compile(r"[a-z0-9]{1,8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where files go, and what they may come from."""

    folder: ReferenceFolder
    store: ArtifactStore | None = None
    """Where keys lie; None where only the folder knows them."""
    links: LinkRules = DEFAULT_RULES
    input_root: Path | None = None
    """Below it local paths are read; None reads none."""


@dataclass(slots=True)
class Gathered:
    """A job whose files are all here, by key and hash; a context manager, which lets go of them."""

    job: Job
    asked: Job
    """The same, its files called as they were by whoever asked, for messages."""
    files: Mapping[str, Path] = field(default_factory=dict)
    """By place: `references[0]`, `references[0].audio`, `last_frame`."""
    _held: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._held.close()


def gather(job: Job, sources: Sources) -> Gathered:
    """Have every file of a job in the folder.

    Raises ReferenceUnreadableError; and where the same may succeed later ReferenceUnreachableError,
    StorageUnavailableError, ReferenceFolderError.
    """
    settled: dict[str, MediaSource] = {}
    files: dict[str, Path] = {}
    with ExitStack() as held:
        for medium in job.media:
            file = held.enter_context(_have(medium, sources))
            if file.size_bytes > KIND_BYTES[medium.kind]:
                raise _too_large(medium)
            files[medium.place] = file.path
            settled[medium.place] = MediaSource(source=_key(medium, file.path.name), sha256=file.path.name)
        named = without_queries(job).with_media(
            lambda medium: MediaSource(source=medium.source, sha256=settled[medium.place].sha256)
        )
        return Gathered(job.with_media(lambda medium: settled[medium.place]), named, files, held.pop_all())


def without_queries(job: Job) -> Job:
    """Return a job as it may be kept: a link's query may be a signature."""

    def shown(medium: Medium) -> MediaSource:
        source = shown_source(medium.source)
        return MediaSource(source=source, sha256=medium.sha256)

    return job.with_media(shown)


def _have(medium: Medium, sources: Sources) -> HeldFile:
    if is_local(medium.source):
        with _open_local(
            medium, sources.input_root
        ) as stream:  # also where the content is known: by its path
            return _known(medium, sources) or _copied(medium, stream, sources.folder)
    known = _known(medium, sources)
    if known is not None:
        return known
    if is_link(medium.source):
        return _fetched(medium, sources)
    return _from_store(medium, sources)


def _known(medium: Medium, sources: Sources) -> HeldFile | None:
    return sources.folder.hold(medium.sha256) if medium.sha256 else None


def _fetched(medium: Medium, sources: Sources) -> HeldFile:
    with sources.folder.receiving() as temporary:
        try:
            found = fetch_link(
                medium.source, to=temporary, limit_bytes=KIND_BYTES[medium.kind], rules=sources.links
            )
        except LinkRefusedError as error:
            raise _unreadable(medium, f"it {error.fault}") from None
        except LinkUnreachableError as error:
            raise ReferenceUnreachableError(f"{medium.place} ({error.shown}): it {error.fault}") from None
        _check_hash(medium, found.sha256)
        return sources.folder.keep(temporary, found.sha256)


def _from_store(medium: Medium, sources: Sources) -> HeldFile:
    if sources.store is None:
        raise _unreadable(medium, "it is not known here; send the file to POST /references first")
    try:
        with sources.store.open(medium.source) as stream:
            return _copied(
                medium,
                stream,
                sources.folder,
                remedy=f"remove it from {sources.store.url} and submit the job with the file itself",
            )
    except ArtifactMissingError:
        fault = f"it is not in {sources.store.url}; submit the job with the file itself"
        raise _unreadable(medium, fault) from None


def _copied(
    medium: Medium, stream: BinaryIO, folder: ReferenceFolder, *, remedy: str = _SUBMIT_ANEW
) -> HeldFile:
    """Keep what a stream holds, bounded while it is read."""
    digest, size = hashlib.sha256(), 0
    with folder.receiving() as temporary:
        with temporary.open("xb") as sink:
            while chunk := stream.read(_CHUNK_BYTES):
                size += len(chunk)
                if size > KIND_BYTES[medium.kind]:
                    raise _too_large(medium)
                digest.update(chunk)
                sink.write(chunk)
        _check_hash(medium, digest.hexdigest(), remedy=remedy)
        return folder.keep(temporary, digest.hexdigest())


@contextmanager
def _open_local(medium: Medium, root: Path | None) -> Iterator[BinaryIO]:
    """Open a file below the input root, wherever links and `..` lead. Raises ReferenceUnreadableError."""
    if root is None:
        raise _unreadable(
            medium,
            "it is a local path, and this engine reads none: send the file to POST /references and name its"
            " key, give an https link, or start the engine with --input-root",
        )
    root = Path(os.path.realpath(root))
    outside = _unreadable(medium, "there is no such file below the engine's --input-root")
    path = Path(os.path.realpath(root / medium.source))
    if not (path.is_relative_to(root) and path.is_file()):
        raise outside
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise outside from None
    with os.fdopen(descriptor, "rb") as stream:
        # A folder on the way may have become a link since it was looked at.
        opened = Path(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        if not opened.is_relative_to(root) or not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise outside
        yield stream


def _check_hash(medium: Medium, sha256: str, *, remedy: str = _SUBMIT_ANEW) -> None:
    if medium.sha256 not in (None, sha256):
        raise _unreadable(medium, f"it does not hold what its sha256 says; {remedy}")


def _too_large(medium: Medium) -> ReferenceUnreadableError:
    most = KIND_BYTES[medium.kind]
    return _unreadable(
        medium, f"a reference of kind {medium.kind} has at most {most:,} bytes; make it smaller"
    )


def _unreadable(medium: Medium, fault: str) -> ReferenceUnreadableError:
    file = shown_source(medium.source)
    return ReferenceUnreadableError(fault, file=shortened(file, _SHOWN_CHARACTERS), place=medium.place)


def _key(medium: Medium, sha256: str) -> str:
    """Return the key under which the file is known from now on."""
    path = urlsplit(medium.source).path if is_link(medium.source) else medium.source
    ending = PurePosixPath(path).suffix.removeprefix(".").lower()
    return reference_key(sha256, ending if _ENDING.fullmatch(ending) else "bin")
