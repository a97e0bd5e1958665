"""References in a sweep file: written as on the command line or as objects, files taken from beside it.

Also as an axis: each value of `references` is a list or a single one. What is no reference at all is left to
the schema.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from client.given_references import parse_reference
from client.media_kinds import path_of
from queue_schemas.references import KEYFRAMES, MEDIA_FIELDS, is_local


def with_references_beside(document: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the document with references as items, local files with their folder. Raises SweepInputError."""
    found = {**document, **_fields(document, folder)}
    axes = document.get("axes")
    if isinstance(axes, Mapping):
        found["axes"] = {
            name: [_fields({name: value}, folder)[name] for value in values]
            if name in MEDIA_FIELDS and isinstance(values, list)
            else values
            for name, values in axes.items()
        }
    return found


def _fields(given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in KEYFRAMES:
        value = given.get(name)
        if name in given:  # a list at the top of the file is an axis
            found[name] = (
                [_frame(v, folder) for v in value] if isinstance(value, list) else _frame(value, folder)
            )
    if "references" in given:
        value = given["references"]
        found["references"] = [
            _item(item, folder) for item in (value if isinstance(value, list) else [value])
        ]
    return found


def _item(given: Any, folder: Path) -> Any:
    item = parse_reference(given) if isinstance(given, str) else given
    if not isinstance(item, Mapping):
        return item
    sound = "off" if item.get("audio") is False else item.get("audio")  # YAML takes off for false
    named = {} if sound is None else {"audio": sound if sound in ("auto", "off") else _frame(sound, folder)}
    return {**_frame(item, folder), **named}


def _frame(given: Any, folder: Path) -> Any:
    if isinstance(given, Mapping):
        return {name: _moved(value, folder) if name == "source" else value for name, value in given.items()}
    return _moved(given, folder)


def _moved(source: Any, folder: Path) -> Any:
    if isinstance(source, str) and is_local(source) and "://" not in source:
        return str(folder / path_of(source))
    return source
