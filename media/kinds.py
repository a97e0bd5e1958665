"""What a file can be used as, told by what it holds."""

from pathlib import Path

from media.sniff import sniff
from media.streams import film_of, open_streams
from queue_schemas.references import Kind


def kind_of_file(path: Path, *, wanted: Kind = "image") -> Kind:
    """Return the kind of a file: a container with pictures is a clip, also where it has sound.

    `wanted` is what a refusal speaks of. Raises ReferenceUnreadableError and OSError.
    """
    with path.open("rb") as file:
        form = sniff(file, wanted=wanted)
    if form.family == "picture":
        return "image"
    with open_streams(path, form) as container:
        return "audio" if film_of(container) is None else "video"
