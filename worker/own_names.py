"""What this project keeps for itself below an engine's output root, and so refuses as a caller's film.

runs/<run_id>/<generation>/attempts/<attempt>/video.mp4     films that pullers ask for, by this name alone
spool/                                                      films that wait for their store
references/                                                 what jobs were given, by the hash of its content
conditioning/                                               text features of earlier prompts
engine-<node>.log, engine-<node>.log.1                      the engines' logs
store.json                                                  what tells a store, which no root may be
.film-….part, .….tmp                                        unfinished files, as all hidden names
"""

import re
from pathlib import PurePosixPath
from typing import Final

from storage.layout import ATTEMPT_FOLDER, CONDITIONING_PREFIX, FILM, RUNS_PREFIX, STORE_KEY

RUNS: Final = RUNS_PREFIX.removesuffix("/")
SPOOL: Final = "spool"
REFERENCES: Final = "references"
CONDITIONING: Final = CONDITIONING_PREFIX.removesuffix("/")
ENGINE_LOG: Final = "engine-{node}.log"
_RESERVED: Final = re.compile(
    rf"\..*|{RUNS}|{SPOOL}|{REFERENCES}|{CONDITIONING}|{re.escape(STORE_KEY)}|engine-.*\.log(\.[0-9]+)?"
)


def reserved_part(output: str) -> str | None:
    """Return the first folder of a film's name if it is one of those above; None lets the name be.

    The name itself ends in .mp4, as none of those above but a puller's does.
    """
    path = PurePosixPath(output)
    first = path.parts[0]
    if len(path.parts) == 1 or not _RESERVED.fullmatch(first):
        return None
    is_attempts = path.name == FILM and ATTEMPT_FOLDER.fullmatch(path.parent.as_posix())
    return None if is_attempts else first
