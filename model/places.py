"""Whether a file or a folder is where somebody says, or a sentence on why nobody can tell."""

import stat
from pathlib import Path

from model.errors import CheckpointFileError


def is_file(path: Path) -> bool:
    """Say whether a regular file is there. Raises CheckpointFileError for a path that cannot be looked at."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Say whether a folder is there. Raises CheckpointFileError for a path that cannot be looked at."""
    return stat.S_ISDIR(_mode(path))


def is_there(path: Path) -> bool:
    """Say whether anything is there. Raises CheckpointFileError for a path that cannot be looked at."""
    return bool(_mode(path))


def _mode(path: Path) -> int:
    """Return the mode of what is there, 0 for nothing."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:  # a name too long, a link to itself, a folder of somebody else
        raise CheckpointFileError(path, f"cannot be looked at: {error.strerror}") from None
    except ValueError:  # NUL, or half a surrogate pair: a file of names may hold either
        raise CheckpointFileError(path, "cannot be the name of a file") from None
