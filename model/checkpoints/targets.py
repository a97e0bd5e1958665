"""Files that a person means by a path, a folder or a pattern; and where a report of one is kept."""

import glob
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ARTIFACTS: Final = Path("artifacts") / "checkpoints"
SUFFIX: Final = ".safetensors"


def expand(arguments: Iterable[str]) -> list[Path]:
    """Return every file meant, in order and once: all *.safetensors below a folder, all matches of a pattern.

    What does not exist stays, so that its refusal names it; so does a folder without such a file, or one that
    is named as a file is.
    """
    found: dict[Path, None] = {}
    for argument in arguments:
        path = Path(argument)
        if path.is_dir() and not path.name.endswith(SUFFIX):
            found |= dict.fromkeys(sorted(path.rglob(f"*{SUFFIX}")) or [path])
        elif not os.path.lexists(path) and glob.has_magic(argument):
            matches = sorted(glob.glob(argument, recursive=True))  # noqa: PTH207 - Path's takes no absolute one
            found |= dict.fromkeys([Path(match) for match in matches] or [path])
        else:
            found[path] = None
    return list(found)


def valid_text(text: str) -> str:
    """Return the text, of a path perhaps, with bytes escaped that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def artifact_folder(path: Path, *, working: Path) -> Path:
    """Return where reports of this file go: at the root of its volume, if that is not the system's and can be
    written, else below the working folder.
    """
    root = path.resolve().parent
    while not root.is_mount() and root != root.parent:
        root = root.parent
    own = root != Path(root.anchor) and os.access(root, os.W_OK)
    return (root if own else working) / ARTIFACTS


def write_artifact(folder: Path, name: str, text: str) -> Path:
    """Write `folder/name.json` at one stroke and return its path. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.json"
    partial = folder / f".{name}.{os.getpid()}.part"
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target
