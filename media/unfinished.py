"""What a film is called until it is whole; only a kill leaves one, and its name says that it is no film."""

import re
import secrets
from pathlib import Path
from typing import Final

UNFINISHED: Final = re.compile(r"\.film-[0-9a-f]{16}\.part")


def unfinished_beside(path: Path) -> Path:
    """Return a fresh name in the folder of `path`."""
    return path.with_name(f".film-{secrets.token_hex(8)}.part")
