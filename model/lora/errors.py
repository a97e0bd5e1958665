"""What can be wrong with a LoRA. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from model.errors import ModelError
from queue_schemas.errors import ErrorCode
from queue_schemas.text import shortened

_EXAMPLES = 3


class LoraFileError(ModelError):
    """Raised when a file is no LoRA that can be applied: malformed, of another kind, or for another model."""

    code = ErrorCode.CHECKPOINT_INVALID

    def __init__(self, source: Path, reason: str) -> None:
        super().__init__(f"LoRA {source}: {reason}")
        self.source, self.reason = source, reason


class LoraPartialError(ModelError):
    """Raised when some of a LoRA's tensors have no place in this transformer and nobody allowed that."""

    code = ErrorCode.CHECKPOINT_INVALID

    def __init__(
        self, source: Path, *, matched: int, total: int, dropped: Mapping[str, Sequence[str]]
    ) -> None:
        super().__init__(
            f"LoRA {source}: {matched} of {total} tensors fit this transformer; {told_dropped(dropped)}."
            " --allow-partial-lora loads the rest without them"
        )
        self.source, self.matched, self.total, self.dropped = source, matched, total, dropped


class LoraMissingError(ModelError):
    """Raised when a named LoRA file is not where it was looked for."""

    code = ErrorCode.CHECKPOINT_MISSING

    def __init__(self, name: str, *, looked_at: Sequence[Path], there: Sequence[str]) -> None:
        places = ", ".join(str(path) for path in looked_at)
        found = f"; in the loras folder: {', '.join(there)}" if there else ""
        super().__init__(f"no LoRA {name!r} found; looked at {places}{found}")
        self.name, self.looked_at = name, list(looked_at)


class LoraNotLoadedError(ModelError):
    """Raised when a job names a LoRA that this engine does not have."""

    code = ErrorCode.CHECKPOINT_MISMATCH

    def __init__(self, name: str, *, loaded: Sequence[str]) -> None:
        there = f"loaded are {', '.join(loaded)}" if loaded else "none is loaded"
        super().__init__(f"this engine has no LoRA {name!r}; {there} (h3-worker --lora NAME)")
        self.name, self.loaded = name, list(loaded)


class AdalnProjectionError(ModelError):
    """Raised when a pruned transformer's table does not follow the time embedder that was given."""

    code = ErrorCode.CHECKPOINT_INVALID

    def __init__(self, left: float) -> None:
        super().__init__(
            f"{left:.1%} of the time embedder's curve lie outside the pruned transformer's table; give"
            " --lora-time-embedder the full file of the same model"
        )
        self.left = left


def told_dropped(dropped: Mapping[str, Sequence[str]]) -> str:
    """Say for each reason how many tensors it concerns, and name the first."""
    parts = []
    for reason, names in dropped.items():
        shown = ", ".join(shortened(name, 100) for name in names[:_EXAMPLES])
        parts.append(f"{len(names)} {reason} ({shown}{', ...' if len(names) > _EXAMPLES else ''})")
    return "; ".join(parts)
