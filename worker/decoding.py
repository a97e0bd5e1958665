"""A gathered job's files decoded, on the CPU, into what the pipeline takes."""

import errno
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from queue_schemas.checks import CheckReport
from worker.gathering import Gathered
from worker.reference_folder import ReferenceFolderError

if TYPE_CHECKING:
    from media.references import PreparedMedia

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def decode_media(gathered: Gathered | None) -> list["PreparedMedia"]:
    """Return a job's media, none where it has none.

    Raises ReferenceUnreadableError, which calls files as whoever asked did, and ReferenceFolderError where
    the disk takes no decoded clip.
    """
    if gathered is None or not gathered.files:
        return []
    from media.references import prepare_references  # noqa: PLC0415 - Pillow, for a job that has a use for it

    with _having_room():
        return prepare_references(gathered.asked, gathered.files)


def check_media(gathered: Gathered, *, count_tokens: Callable[[str], int]) -> CheckReport:
    """Return what the job would cost, text by `count_tokens`, and what becomes of its files.

    Raises as `decode_media` does.
    """
    from media.checking import check_request  # noqa: PLC0415 - for whoever asks

    with _having_room():
        report = check_request(gathered.asked, gathered.files, count_tokens=count_tokens)
    return report.model_copy(update={"job": gathered.job.model_dump(mode="json")})


@contextmanager
def _having_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        fault = (error.strerror or "it is full").lower()
        raise ReferenceFolderError(Path(tempfile.gettempdir()), fault) from error
