"""How one process of this project starts another."""

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of `python -m module`, with nothing imported from the working folder.

    That folder is the user's: without -P (Python 3.11) a `redis.py` in it would be run in redis-py's place.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
