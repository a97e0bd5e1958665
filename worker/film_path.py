"""Where a film goes below the engine's output root: a path that can be written, or a refusal at once."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Final

from media.errors import FilmWriteError
from queue_schemas.errors import InvalidRequestError
from worker.own_names import reserved_part

_LONGEST_NAME: Final = "x" * 255
"""The encoder writes under a temporary name beside the film, which must fit as well."""


def film_path(root: Path, output: str) -> Path:
    """Return the path of the film `output` below `root`, which is absolute and free of links; it may be new.

    Raises InvalidRequestError for what the project keeps for itself, and where a link leads out of the root,
    something is in the way, or the path is too long for the file system.
    """
    reserved = reserved_part(output)
    if reserved is not None:
        raise InvalidRequestError(
            f"output {output!r}: {reserved!r} is kept for the engine's own files; name another folder"
        )
    target = root / output
    if not Path(os.path.realpath(target.parent)).is_relative_to(root):
        raise InvalidRequestError(f"output {output!r} leads to no place below the output root")
    try:
        (target.parent / _LONGEST_NAME).lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidRequestError(f"output {output!r} makes too long a path on this node") from None
    for folder in reversed(target.relative_to(root).parents):
        if os.path.lexists(root / folder) and not (root / folder).is_dir():
            raise InvalidRequestError(f"output {output!r}: {str(folder)!r} is no folder on this node")
    if target.is_dir():
        raise InvalidRequestError(f"output {output!r} is a folder on this node")
    return target


@contextmanager
def film_folder(film: Path) -> Iterator[None]:
    """Have the film's folder be there; what was made of it goes again where no film came.

    Raises FilmWriteError.
    """
    made = list(takewhile(lambda folder: not folder.exists(), film.parents))
    try:
        film.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for folder in made:
            with suppress(OSError):  # never made, or another film's by now
                folder.rmdir()
        if isinstance(error, OSError):
            raise FilmWriteError(film, error.strerror or str(error)) from error
        raise
