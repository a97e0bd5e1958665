"""Gather the records of all runs that have ended from storage alone: one JSON list and one CSV table.

One record per manifest: that of its winning attempt. A damaged one is reported by key and left out.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import columns, flatten
from client.errors import CollectTargetError, DamagedArtifactError
from client.outcomes import read_manifest, read_record
from queue_schemas.benchmark import BenchmarkRecord
from storage.base import ArtifactStore
from storage.layout import RUNS_PREFIX, parse_manifest_key
from storage.local import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What was found, in order of run and generation."""

    records: tuple[BenchmarkRecord, ...]
    problems: tuple[str, ...]
    """One sentence per artifact that could not be used; each names its key."""


def collect(store: ArtifactStore) -> Collection:
    """Read every manifest and the record that it names. Raises StorageUnavailableError."""
    records, problems = [], []
    ended = [run for key in store.list(RUNS_PREFIX) if (run := parse_manifest_key(key)) is not None]
    for run_id, generation in sorted(ended):
        try:
            manifest = read_manifest(store, run_id, generation)
            record = None if manifest is None else read_record(store, manifest)
        except DamagedArtifactError as error:
            problems.append(str(error))
            continue
        if record is None:
            problems.append(f"run {run_id}, generation {generation}: its manifest names no record")
        else:
            records.append(record)
    return Collection(records=tuple(records), problems=tuple(problems))


def collect_files(store: ArtifactStore, *, csv_file: Path | None, json_file: Path | None) -> Collection:
    """Collect, and write what was found to the files that are named, each whole or not at all."""
    found = collect(store)
    if csv_file is not None:
        write_table(csv_file, csv_text(found.records))
    if json_file is not None:
        write_table(json_file, json_text(found.records))
    return found


def json_text(records: Sequence[BenchmarkRecord]) -> str:
    """Return one JSON list, a record per line."""
    lines = (record.model_dump_json() for record in records)
    return "[\n" + ",\n".join(lines) + "\n]\n" if records else "[]\n"


def csv_text(records: Sequence[BenchmarkRecord]) -> str:
    """Return a table with a header; null is an empty cell, true and false as JSON has them."""
    sink = io.StringIO()
    names = columns(records)
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(names)
    for record in records:
        cells = flatten(record)
        writer.writerow([_cell(cells.get(name)) for name in names])
    return sink.getvalue()


def write_table(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises CollectTargetError, StorageUnavailableError."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise CollectTargetError(f"{path} is a folder or a device; name a file")
    write_whole(target, text.encode())


def _cell(value: str | int | float | bool | None) -> str | int | float:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool) else value
