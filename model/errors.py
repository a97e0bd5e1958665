"""Errors of the runtime. Imports no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from queue_schemas.errors import ErrorCode
from queue_schemas.text import printable, shortened


class ModelError(Exception):
    """Base of every error this package raises on purpose; its message is one printable line."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    def __init__(self, message: str) -> None:
        # Files and tensors may be called anything.
        super().__init__(printable(message))


def _path(path: Path) -> str:
    """A path of readable length, so that the sentence around it is not cut off."""
    shown = str(path)
    return shown if len(shown) <= 400 else f"{shown[:200]}...{shown[-100:]}"


class CheckpointMissingError(ModelError):
    """Raised when a file of the resident set is not where it was looked for."""

    code = ErrorCode.CHECKPOINT_MISSING

    def __init__(self, role: str, *, looked_at: Sequence[Path], hint: str = "") -> None:
        places = ", ".join(map(_path, looked_at))
        super().__init__(f"no {role} file found; looked at {places}{'; ' + hint if hint else ''}")
        self.role, self.looked_at = role, list(looked_at)


class EmptyNameError(ModelError):
    """Raised when an option that names a model file is given and empty."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, option: str) -> None:
        super().__init__(f"{option} is empty; name a file, or leave the option out")
        self.option = option


class CheckpointAmbiguousError(ModelError):
    """Raised when several files fit one role and nobody said which."""

    code = ErrorCode.CHECKPOINT_MISSING

    def __init__(self, role: str, *, folder: Path, names: Sequence[str], option: str) -> None:
        super().__init__(
            f"several {role} files fit in {_path(folder)} ({', '.join(names)}); name one with {option}"
        )
        self.role, self.folder, self.names = role, folder, list(names)


class ResidentSetError(ModelError):
    """Raised when a resident set file is absent, malformed, or asks for what no version can do yet."""

    code = ErrorCode.CHECKPOINT_INVALID

    def __init__(self, source: Path, reason: str) -> None:
        super().__init__(f"resident set {_path(source)}: {reason}")
        self.source, self.reason = source, reason


class CheckpointFileError(ModelError):
    """Raised when a file is no readable safetensors file: truncated, foreign, malformed.

    `offset` is the byte of the file at which that shows, where one does.
    """

    code = ErrorCode.CHECKPOINT_INVALID

    def __init__(self, source: Path, reason: str, *, offset: int | None = None) -> None:
        super().__init__(f"{_path(source)}: {reason}" + ("" if offset is None else f" (at byte {offset:,})"))
        self.source, self.reason, self.offset = source, reason, offset


class CheckpointMismatchError(ModelError):
    """Raised when a file's tensors are not exactly those that the architecture has."""

    code = ErrorCode.CHECKPOINT_INVALID

    def __init__(
        self,
        source: Path,
        *,
        missing: Sequence[str] = (),
        unexpected: Sequence[str] = (),
        wrong: Sequence[str] = (),
    ) -> None:
        parts = [
            f"{len(names)} {kind} ({_first(names)})"
            for kind, names in (
                ("missing", missing),
                ("unexpected", unexpected),
                ("of wrong shape or dtype", wrong),
            )
            if names
        ]
        super().__init__(f"{_path(source)}: tensors do not match the architecture: {'; '.join(parts)}")
        self.source = source
        self.missing, self.unexpected, self.wrong = list(missing), list(unexpected), list(wrong)


def _first(names: Sequence[str]) -> str:
    """A file chooses its names, also very long ones."""
    return ", ".join([*(shortened(name, 200) for name in names[:4]), *(["..."] if len(names) > 4 else [])])


class SyntheticFolderError(ModelError):
    """Raised when the place of a synthetic checkpoint is not this project's, or cannot be written."""

    code = ErrorCode.CHECKPOINT_INVALID

    def __init__(self, folder: Path, fault: str | None = None) -> None:
        if fault is None:
            super().__init__(f"{folder} exists and holds no synthetic checkpoint; move it away")
        else:
            super().__init__(f"{folder} cannot be written ({fault}); start in another folder")
        self.folder = folder


class TokenizerError(ModelError):
    """Raised when no usable tokenizer can be made: a file absent or foreign, a special token missing."""

    code = ErrorCode.CHECKPOINT_INVALID


class TokenizerMismatchError(ModelError):
    """Raised when token ids reach beyond the rows of the text encoder's embedding."""

    code = ErrorCode.CHECKPOINT_INVALID

    def __init__(self, *, largest_id: int, num_rows: int) -> None:
        super().__init__(
            f"token ids go up to {largest_id}, but the text encoder's embedding has {num_rows} rows;"
            " use the tokenizer that belongs to this checkpoint (H3_TOKENIZER_DIR)"
        )
        self.largest_id, self.num_rows = largest_id, num_rows


class EmptyPromptError(ModelError):
    """Raised when a prompt yields no token, which the transformer cannot be conditioned on."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self) -> None:
        super().__init__(
            "the prompt yields no token; write one, or use the comfyui conventions, which pad it"
        )


class WrongCheckpointError(ModelError):
    """Raised when a job names another resident set than the one loaded here."""

    code = ErrorCode.CHECKPOINT_MISMATCH

    def __init__(self, *, wanted: str, resident: str) -> None:
        super().__init__(f"this engine serves checkpoint {resident!r}; the job wants {wanted!r}")
        self.wanted, self.resident = wanted, resident


class EncoderMissingError(ModelError):
    """Raised when a job shows pictures, clips or sounds to a VAE whose file holds the decoder alone."""

    code = ErrorCode.CHECKPOINT_MISMATCH

    def __init__(self, role: str, *, source: Path) -> None:
        super().__init__(
            f"this job needs the encoder of the {role}, which {_path(source)} does not hold;"
            " load ComfyUI's whole file"
        )
        self.role, self.source = role, source


class AttentionUnavailableError(ModelError):
    """Raised when a job names an attention backend that this engine does not have."""

    code = ErrorCode.ATTENTION_UNAVAILABLE

    def __init__(self, name: str, *, available: Sequence[str]) -> None:
        super().__init__(
            f"attention backend {name!r} is not available here; choose auto or {', '.join(available)}"
        )
        self.name, self.available = name, list(available)


class OutputRejectedError(ModelError):
    """Raised when latents, pixels or samples are not finite: never a film made of garbage."""

    code = ErrorCode.OUTPUT_REJECTED

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} hold values that are not finite; nothing was written")
        self.what = what


class ReferenceUnusedError(ModelError):
    """Raised when a keyframe or reference of a job would leave the film as if it had not been given."""

    code = ErrorCode.OUTPUT_REJECTED

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place} conditions nothing: {reason}; no film was made without it")
        self.place, self.reason = place, reason


class TransformerTaskError(ModelError):
    """Raised when a job needs a transformer of another task than the ones that are resident."""

    code = ErrorCode.CHECKPOINT_MISMATCH

    def __init__(self, *, workflow: str, task: str, resident: str) -> None:
        super().__init__(
            f"checkpoint {resident!r} has the transformer for {task}, which cannot make {workflow};"
            f" name the one for {workflow} in a resident set, or have a node serve it"
        )
        self.workflow, self.task, self.resident = workflow, task, resident


class GenerationCancelledError(ModelError):
    """Raised at the first step boundary after a cancel, `step` being the step that was not begun."""

    code = ErrorCode.CANCELLED

    def __init__(self, *, step: int | None = None) -> None:
        super().__init__("cancelled while decoding" if step is None else f"cancelled before step {step + 1}")
        self.step = step


class DeviceUnavailableError(ModelError):
    """Raised when the named device does not exist here."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, name: str, *, reason: str) -> None:
        super().__init__(f"device {name!r} cannot be used: {reason}")
        self.name, self.reason = name, reason


class ScheduleError(ModelError):
    """Raised when float32 cannot tell the sigmas of a schedule apart: too many steps for the shift."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, *, steps: int, shift: float) -> None:
        super().__init__(
            f"{steps} steps at shift {shift:g} repeat a sigma; take fewer steps or a shift nearer to 1"
        )
        self.steps, self.shift = steps, shift
