"""What was logged during one attempt, as text of bounded length.

The puller opens it before it forks; both processes write, and whoever is left reads: a job process that is
killed leaves its last words to the puller. It lies in memory, without a name: a full disk costs nothing, and
nothing is left behind. Logs of this project hold no prompts, passwords or signed links.
"""

import fcntl
import logging
import os
from typing import Final

from queue_schemas import limits
from queue_schemas.text import printable, shortened

_LINE_CHARACTERS: Final = 1_000


class AttemptLog(logging.Handler):
    """A handler that keeps the newest LOG_BYTES of what this process and those forked from it log."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._file = os.memfd_create("attempt.log")
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)  # two processes never write over each other
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.add(self.format(record))

    def add(self, text: str, *, prefix: str = "") -> None:
        """Write down what somebody else said."""
        lines = (shortened(printable(line), _LINE_CHARACTERS) for line in text.splitlines())
        data = "".join(f"{prefix}{line}\n" for line in lines).encode()
        if os.fstat(self._file).st_size > 2 * limits.LOG_BYTES:  # a job that waits for hours
            data = self.text().encode() + data
            os.ftruncate(self._file, 0)
        os.write(self._file, data)

    def close(self) -> None:
        """Write no more, and forget."""
        logging.getLogger().removeHandler(self)
        os.close(self._file)
        super().close()

    def text(self) -> str:
        """Return all of it that is kept, whole lines."""
        start = max(0, os.fstat(self._file).st_size - limits.LOG_BYTES)
        data = os.pread(self._file, limits.LOG_BYTES, start)
        return _whole_lines(data.decode(errors="replace"), cut=start > 0)

    def tail(self) -> str:
        """Return the end of it, for a dead letter."""
        text = self.text()
        cut = len(text) > limits.LOG_TAIL_CHARACTERS
        return _whole_lines(text[-limits.LOG_TAIL_CHARACTERS :], cut=cut)


def _whole_lines(text: str, *, cut: bool) -> str:
    return text.partition("\n")[2] if cut else text
