"""Which file a LoRA's name means: `FILE` or `NAME=FILE`, below the models folder's `loras/` or by path.

Imports no torch.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model.checkpoints.header import Header, read_header
from model.lora.errors import LoraFileError, LoraMissingError
from model.places import is_file
from queue_schemas import limits
from queue_schemas.names import NAME_PATTERN

LORAS_FOLDER: Final = "loras"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraFile:
    """One LoRA to load: the name that jobs use, and the checked header of its file."""

    name: str
    header: Header


def split_source(text: str) -> tuple[str, str]:
    """Return name and file of `NAME=FILE`; of `FILE` alone, its own name without `.safetensors`."""
    name, equals, file = text.partition("=")
    return (name, file) if equals else (Path(text).name.removesuffix(".safetensors"), text)


def find_lora(text: str, models_dir: Path | None, *, beside: Path | None = None) -> LoraFile:
    """Find the LoRA that `FILE` or `NAME=FILE` means; a relative name counts also from `beside`.

    Raises LoraMissingError, LoraFileError for a name that no job could write, CheckpointFileError.
    """
    name, file = split_source(text)
    folder = None if models_dir is None else models_dir / LORAS_FOLDER
    places = [Path(file) if beside is None else beside / file]
    if folder is not None:
        places += [folder / file, folder / f"{file}.safetensors"]
    path = next((place for place in places if is_file(place)), None)
    if path is None:
        there = sorted(path.relative_to(folder) for path in folder.rglob("*.safetensors")) if folder else []
        raise LoraMissingError(file, looked_at=places, there=[str(path) for path in there])
    if not re.fullmatch(NAME_PATTERN, name):
        raise LoraFileError(path, f"{name!r} is no name for jobs; give it one: --lora turbo={file}")
    return LoraFile(name=name, header=read_header(path))


def distinct(found: Iterable[LoraFile]) -> tuple[LoraFile, ...]:
    """Return them all, each under a name of its own. Raises LoraFileError."""
    by_name: dict[str, LoraFile] = {}
    for lora in found:
        if lora.name in by_name:
            there = by_name[lora.name].header.path
            raise LoraFileError(
                lora.header.path, f"{lora.name!r} is {there} already; name one otherwise: --lora NAME=FILE"
            )
        if len(by_name) == limits.RESIDENT_LORAS:
            raise LoraFileError(lora.header.path, f"is one too many; an engine has {limits.RESIDENT_LORAS}")
        by_name[lora.name] = lora
    return tuple(by_name.values())
