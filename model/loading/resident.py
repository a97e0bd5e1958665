"""Resident set files: which one a checkpoint's name means, read and checked.

Knows no roles and no headers: it turns a name into a `ResidentSet`, or says that it is none.
"""

from pathlib import Path
from typing import Final

from pydantic import ValidationError

from model.errors import ResidentSetError
from model.places import is_file
from queue_schemas import limits
from queue_schemas.errors import InvalidRequestError, explain
from queue_schemas.requests import load_json_object
from queue_schemas.resident import ResidentSet

SETS_FOLDER: Final = "h3_sets"
"""Below the models folder; `NAME.json` there is the set that `--checkpoint NAME` means."""


def find_set(models_dir: Path | None, checkpoint: str | None) -> tuple[Path, ResidentSet] | None:
    """Return the set that `checkpoint` names, with its file; None when it names a transformer.

    Raises ResidentSetError.
    """
    if checkpoint is None:
        return None
    known = set_files(models_dir)
    path = Path(checkpoint) if checkpoint.endswith(".json") else known.get(checkpoint)
    if path is None:
        return None
    if not is_file(path):
        there = f"; sets in {SETS_FOLDER}: {', '.join(known)}" if known else ""
        raise ResidentSetError(path, f"is no file{there}")
    found = read_set(path)
    if known.get(path.stem) == path and found.name != path.stem:
        raise ResidentSetError(path, f"names itself {found.name!r}; in {SETS_FOLDER} both names must agree")
    return path, found


def set_files(models_dir: Path | None) -> dict[str, Path]:
    """Return the sets of a models folder, by name."""
    folder = models_dir / SETS_FOLDER if models_dir else None
    return {} if folder is None else {path.stem: path for path in sorted(folder.glob("*.json"))}


def read_set(path: Path) -> ResidentSet:
    """Read one set file. Raises ResidentSetError with every fault."""
    try:
        with path.open("rb") as file:
            fields = load_json_object(file.read(limits.JOB_BYTES + 1), limit_bytes=limits.JOB_BYTES)
        found = ResidentSet.model_validate(fields)
    except OSError as error:
        raise ResidentSetError(path, f"cannot be read: {error.strerror}") from None
    except InvalidRequestError as error:
        raise ResidentSetError(path, str(error)) from None
    except ValidationError as error:
        raise ResidentSetError(path, explain(error, known_fields=ResidentSet.model_fields)) from None
    return found
