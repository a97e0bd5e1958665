"""The text by which a job is known: what is hashed, so that equal jobs are one, wherever their files lie.

What a field's default is never changes within a schema version, so it is left out.
"""

import json
from enum import StrEnum
from typing import Any

from pydantic import BaseModel

from queue_schemas.references import ReferenceItem


def canonical_json(job: BaseModel) -> str:
    """Return a job as sorted keys without spaces, its workflow and what is not at its default."""
    fields, dumped = type(job).model_fields, job.model_dump(mode="json")
    values = {
        name: _without_sources(value)
        for name, value in dumped.items()
        if name == "workflow" or value != _json_default(fields[name].default)
    }
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _json_default(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value.value if isinstance(value, StrEnum) else value


def _without_sources(value: Any) -> Any:
    """Return `value` without where its files lie, and without options at their default."""
    if isinstance(value, list):
        return [_without_sources(item) for item in value]
    if not isinstance(value, dict) or "source" not in value:
        return value
    fields = ReferenceItem.model_fields
    return {
        name: _without_sources(part)
        for name, part in value.items()
        if name != "source" and part != fields[name].default
    }
