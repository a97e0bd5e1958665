"""Benchmark records as data: parse one, and lay many out as one table with stable columns.

A column is the dotted path of a field, in the order of the schema. Where the schema leaves names open (the
request, library versions) the names found follow in a fixed order: equal records give equal tables.
Pure Python; knows no store and no queue.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.errors import explain
from queue_schemas.jobs import WORKFLOWS

Cell = str | int | float | bool | None


class RecordError(ValueError):
    """Raised when bytes are not a benchmark record."""


def parse_record(data: bytes) -> BenchmarkRecord:
    """Return the record in `data`; fields that this version does not know are ignored."""
    try:
        return BenchmarkRecord.model_validate_json(data)
    except ValidationError as error:
        raise RecordError(explain(error)) from None


def flatten(record: BenchmarkRecord) -> dict[str, Cell]:
    """Return every leaf of a record by its dotted path; a list is one cell of compact JSON."""
    return dict(leaves(record.model_dump(mode="json")))


def columns(records: Sequence[BenchmarkRecord]) -> list[str]:
    """Return the table's columns: every field of the schema, also where no record fills it."""
    return columns_of({name for record in records for name in flatten(record)})


def columns_of(found: Collection[str]) -> list[str]:
    """Return the columns of a table whose records have leaves of these names."""
    ordered: dict[str, None] = {}
    for path, is_open in _schema_paths(BenchmarkRecord, prefix=""):
        if is_open:
            names = [name for name in found if name.startswith(f"{path}.")]
            ordered |= dict.fromkeys(sorted(names, key=_open_order))
        else:
            ordered[path] = None
    return list(ordered)


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Cell]]:
    """Yield every leaf of JSON values by its dotted path; a list is one cell of compact JSON."""
    if isinstance(value, dict):
        for name, child in value.items():
            yield from leaves(child, f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, list):
        yield prefix, json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    else:
        yield prefix, value


def _schema_paths(model: type[BaseModel], *, prefix: str) -> Iterator[tuple[str, bool]]:
    """Yield each leaf's dotted path in schema order, and whether its names are open (a plain dict)."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        kinds = [field.annotation, *get_args(field.annotation)]
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if str(field.annotation).startswith("dict"):
            yield path, True
        elif nested and not str(field.annotation).startswith("list"):
            yield from _schema_paths(nested[0], prefix=f"{path}.")
        else:
            yield path, False


_JOB_FIELDS = list(dict.fromkeys(name for job in WORKFLOWS.values() for name in job.model_fields))


def _open_order(path: str) -> tuple[int, str]:
    """Sort key: a request's fields as the job declares them, every other open name by the alphabet."""
    root, _, name = path.partition(".")
    known = root == "request" and name in _JOB_FIELDS
    return (_JOB_FIELDS.index(name) if known else len(_JOB_FIELDS), path)
