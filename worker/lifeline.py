"""Children that die with their parent, whatever killed it.

The kernel sends SIGKILL when the parent ends (PR_SET_PDEATHSIG, Linux only; it outlives exec). Run as
`python -m worker.lifeline PARENT_PID PROGRAM ARGS...` it arms that and becomes PROGRAM, so that redis-server,
the engine and the pullers need no code of their own. The kernel watches the *thread* that forked: start
children from the main thread.
"""

import ctypes
import os
import signal
import sys

from queue_schemas.programs import module_command

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_C = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
"""Loaded once, before any fork: it takes a millisecond."""


def die_with_parent(parent_pid: int) -> None:
    """Tie this process to `parent_pid`; ends it at once if that process is gone already."""
    if _C is None:
        return  # a worker runs on Linux; elsewhere only its modules are imported
    if _C.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:  # it died before the call, and no signal will ever come
        os._exit(1)


def tied_command(command: list[str]) -> list[str]:
    """Return the command line that runs `command` tied to this process."""
    return module_command("worker.lifeline", str(os.getpid()), *command)


def _main() -> None:
    die_with_parent(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    _main()
