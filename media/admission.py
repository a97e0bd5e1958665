"""The limits of references, each told with the number found and the number allowed."""

from collections.abc import Sequence
from typing import Final

from media.errors import ReferenceUnreadableError
from queue_schemas import limits
from queue_schemas.references import KIND_BYTES, Kind

_WORDS: Final = {"video": "clip", "audio": "sound"}
_MIB = 1024 * 1024


def check_bytes(kind: Kind, num_bytes: int) -> None:
    """Raise ReferenceUnreadableError for a file that is too large."""
    most = KIND_BYTES[kind]
    if num_bytes > most:
        raise ReferenceUnreadableError(
            f"it has {num_bytes:,} bytes ({num_bytes / _MIB:.1f} MiB); a file of kind {kind} has at most"
            f" {most:,} ({most // _MIB} MiB); compress or shorten it"
        )


def check_shape(width: int, height: int) -> None:
    """Raise ReferenceUnreadableError for a picture or clip longer than 1:4."""
    long, short = max(width, height), min(width, height)
    if long > limits.ASPECT_RATIO_MAX * short:
        raise ReferenceUnreadableError(
            f"it has {width}x{height} pixels, a ratio of {long / short:.2f}:1; at most"
            f" {limits.ASPECT_RATIO_MAX:g}:1 is accepted; crop it"
        )


def check_one_length(kind: Kind, seconds: float, *, slack: float = 0.0) -> None:
    """Raise ReferenceUnreadableError for a clip or sound that is too short or too long.

    `slack` is by how much `seconds` may say too much.
    """
    least, most = limits.REFERENCE_SECONDS_MIN, limits.REFERENCE_SECONDS_MAX
    tolerance = limits.REFERENCE_SECONDS_TOLERANCE
    if seconds < least - tolerance:
        raise ReferenceUnreadableError(
            f"it lasts {seconds:.3f} s; a {_WORDS[kind]} has at least {least:g} s; give a longer one"
        )
    if seconds > most + tolerance + slack:
        raise ReferenceUnreadableError(
            f"it lasts {seconds:.3f} s; a {_WORDS[kind]} has at most {most:g} s; cut it"
        )


def check_all_lengths(kind: Kind, lengths: Sequence[tuple[str, str, float]], *, slack: float = 0.0) -> None:
    """Raise ReferenceUnreadableError where clips or sounds together are too long.

    `lengths` are (place, file, seconds) of every reference of that kind; the last one is named.
    """
    total = sum(seconds for _, _, seconds in lengths)
    most = limits.REFERENCE_SECONDS_MAX
    if total > most + limits.REFERENCE_SECONDS_TOLERANCE + slack * len(lengths):
        place, file, _ = lengths[-1]
        each = " + ".join(f"{seconds:.3f}" for _, _, seconds in lengths)
        raise ReferenceUnreadableError(
            f"with it the {_WORDS[kind]}s last {each} = {total:.3f} s; all of a job's have at most {most:g} s"
            " together; cut or leave out some",
            file=file,
            place=place,
        )
