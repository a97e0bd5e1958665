r"""References as a person gives them: `clip.mp4,audio=off` and paths, turned into what a job holds.

An option begins with a comma, its name and `=`; other commas belong to the file's name, and so does one after
a backslash: `a\,size=b.png` is the file `a,size=b.png`. Kinds that nobody named are found by `media_files`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from client.errors import SweepInputError
from client.media_kinds import kind_of
from queue_schemas.errors import nearest_hint
from queue_schemas.references import KEYFRAMES, MEDIA_FIELDS, shown_source, stored_sha256

_OPTIONS: Final = {"kind": "image, video or audio", "size": "match or max", "audio": "auto, off or a file"}
_OPTION = re.compile(r"(?<!\\),(?=[A-Za-z_]+=)")


def parse_reference(text: str) -> dict[str, Any]:
    """Return the item that `FILE[,OPTION=VALUE]...` stands for. Raises SweepInputError."""
    source, *options = (part.replace("\\,", ",") for part in _OPTION.split(text))
    item: dict[str, Any] = {"source": source}
    for option in options:
        name, _, value = option.partition("=")
        if name not in _OPTIONS:
            known = "; ".join(f"{known}={values}" for known, values in _OPTIONS.items())
            raise SweepInputError(
                f"reference {shown_source(text)}: unknown option {name!r}{nearest_hint(name, _OPTIONS)};"
                rf" there are {known}; a comma of the file's name is written \,"
            )
        if not value:
            raise SweepInputError(f"reference {shown_source(text)}: {name}= needs a value: {_OPTIONS[name]}")
        if name in item:
            raise SweepInputError(f"reference {shown_source(text)}: {name} stands twice")
        item[name] = value
    return item


def with_media(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's fields with each reference as an item that names its kind, paths as texts.

    What is no reference at all is left to the schema. Raises UploadError where nothing tells a kind.
    """
    if not any(name in fields for name in MEDIA_FIELDS):
        return dict(fields)
    filled = dict(fields)
    for name in KEYFRAMES:
        if name in fields:
            filled[name] = _with_text_path(fields[name])
    references = fields.get("references")
    if isinstance(references, str | os.PathLike | Mapping):
        references = [references]
    if isinstance(references, Sequence):
        filled["references"] = [_item(given, place=f"references[{n}]") for n, given in enumerate(references)]
    return filled


def short_names(value: Any) -> str:
    """Return what a label calls references or a keyframe: their files' names, no folders and no queries."""
    if isinstance(value, Mapping):
        return short_names(value.get("source", ""))
    if isinstance(value, list | tuple):
        return " + ".join(map(short_names, value))
    source = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if stored_sha256(source):
        return source.removeprefix("references/")[:12]
    return shown_source(source).rstrip("/").rpartition("/")[2]


def _item(given: Any, *, place: str) -> Any:
    """Return one reference with its kind; what is no reference is left to the schema."""
    item = _as_mapping(given)
    if not isinstance(item, Mapping):
        return item
    item = dict(item)
    if isinstance(item.get("source"), os.PathLike):
        item["source"] = os.fspath(item["source"])
    if "audio" in item:
        item["audio"] = _with_text_path(item["audio"])
    if item.get("kind") is None and isinstance(item.get("source"), str):
        item["kind"] = kind_of(item["source"], called=f"{place} ({shown_source(item['source'])})")
    return item


def _as_mapping(given: Any) -> Any:
    if hasattr(given, "model_dump"):
        return given.model_dump()
    return {"source": given} if isinstance(given, str | os.PathLike) else given


def _with_text_path(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping) and isinstance(value.get("source"), os.PathLike):
        return {**value, "source": os.fspath(value["source"])}
    return value
