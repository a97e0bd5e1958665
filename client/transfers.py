"""Several files on their way at once, a few at a time, and how far they are for whoever watches.

Knows no store and no link: what moves a file is given.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from client.errors import ClientError, UploadError
from queue_schemas import limits
from storage.errors import StorageError, StorageUnavailableError

T = TypeVar("T")

AT_ONCE: Final = 4
_TICK_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Generic[T]):
    """One file that is to be moved."""

    name: str
    """`references[0], clip.mp4`: what a person calls it."""
    size_bytes: int | None
    act: Callable[[], T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far files are together."""

    verb: str
    """`uploading` or `fetching`."""
    files_done: int
    files: int
    bytes_done: int
    bytes: int
    """Of those whose size is known."""
    name: str
    """One that is still on its way; empty at the end."""


Watch = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Watch nothing."""


def move_all(moves: Sequence[Move[T]], *, verb: str, watch: Watch) -> list[T]:
    """Move every file and return what came of each, in order; `watch` hears of it twice a second.

    Once one has failed none is begun. Raises UploadError or
    StorageUnavailableError, with a sentence for each file that failed.
    """
    if not moves:
        return []
    pool = ThreadPoolExecutor(min(AT_ONCE, len(moves)))
    try:
        futures = [pool.submit(move.act) for move in moves]
        pending = set(futures)
        while pending and not any(future.done() and future.exception() for future in futures):
            _, pending = wait(pending, timeout=_TICK_SECONDS, return_when=FIRST_COMPLETED)
            watch(_progress(moves, [future.done() for future in futures], verb=verb))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    failed = [
        (move, error)
        for move, future in zip(moves, futures, strict=True)
        if not future.cancelled() and (error := future.exception()) is not None
    ]
    if failed:
        raise _told(failed)
    return [future.result() for future in futures]


def _progress(moves: Sequence[Move[T]], done: Sequence[bool], *, verb: str) -> Progress:
    sizes = [move.size_bytes or 0 for move in moves]
    return Progress(
        verb=verb,
        files_done=sum(done),
        files=len(moves),
        bytes_done=sum(size for size, is_done in zip(sizes, done, strict=True) if is_done),
        bytes=sum(sizes),
        name=next((move.name for move, is_done in zip(moves, done, strict=True) if not is_done), ""),
    )


def _told(failed: Sequence[tuple[Move[T], BaseException]]) -> BaseException:
    """Return one error that says what befell each file; what nobody expected stays as it is."""
    for _, error in failed:
        if not isinstance(error, ClientError | StorageError):
            return error
    told = [_sentence(move, error) for move, error in failed[: limits.FAULTS_TOLD]]
    more = len(failed) - len(told)
    text = "; ".join([*told, f"and {more} more files"] if more else told)
    is_store = any(isinstance(error, StorageUnavailableError) for _, error in failed)
    return StorageUnavailableError(text) if is_store else UploadError(text)


def _sentence(move: Move[T], error: BaseException) -> str:
    said = str(error)
    return said if move.name in said else f"{move.name}: {said}"
