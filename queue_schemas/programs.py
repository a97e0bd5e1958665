"""How one process of this project starts another, and how a person would start its commands."""

import os
import shutil
import sys
from pathlib import Path


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of `python -m module`, with nothing imported from the working folder.

    That folder is the user's: without -P (Python 3.11) a `redis.py` in it would be run in redis-py's place.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def typed(name: str) -> str:
    """Return what a person types to start a command of this project: its name, or its path if not in PATH.

    Outside an activated environment only the path of the command beside this interpreter works.
    """
    path = Path(sys.executable).with_name(name)
    if shutil.which(name) is not None or not path.exists():
        return name
    shown = os.path.relpath(path)
    return str(path) if shown.startswith(os.pardir) else shown
