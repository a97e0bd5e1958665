"""Gather the records of all runs that have ended from storage alone: one JSON list and one CSV table.

One record per manifest: that of its winning attempt. A damaged one is reported by key and left out. Records
pass through a temporary file, so memory does not grow with their number.
"""

import csv
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TextIO

from benchmarks.records import columns_of, leaves
from client.errors import CollectTargetError, DamagedArtifactError, UnknownRunError
from client.outcomes import latest_manifest, read_artifact, read_manifest, read_record, read_sweep
from queue_schemas import limits
from queue_schemas.base import Told
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.events import JobStatus
from queue_schemas.results import Manifest
from storage.base import ArtifactStore
from storage.errors import StorageAddressError
from storage.layout import RUNS_PREFIX, SWEEPS_PREFIX, parse_manifest_key, shortest_odd, sweep_key

PLAIN_COLUMNS: Final = ("run_id", "sweep", "label", "prompt", "film")
"""The first columns of the table; the record's fields follow by their dotted paths."""
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Where a cell begins so, spreadsheets take it for a formula, or may after they trimmed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """One record, with what storage knows about its run."""

    record: BenchmarkRecord
    sweep: str
    label: str
    film: str
    """The film's key; empty unless the run succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """How much was found."""

    num_records: int
    problems: tuple[str, ...]
    """One sentence per artifact that could not be used; each names its key."""


def records_in(store: ArtifactStore, *, sweep_id: str | None = None) -> Iterator[Collected | str]:
    """Yield every record in order of run and generation, or of one sweep in its order; a str is a problem.

    Raises UnknownRunError for a sweep that is not there, StorageUnavailableError.
    """
    asked_in = _Sweeps(store, only=sweep_id)
    yield from asked_in.problems
    newest = dict[str, int]()
    if sweep_id is None:
        ended, problems = _ended_runs(store)
        newest = dict(sorted(ended))
        yield from problems
        manifests = (_manifest(store, run_id, generation) for run_id, generation in sorted(ended))
    else:
        manifests = (_manifest(store, run_id, None) for run_id in asked_in.labels)
    for manifest in manifests:
        if isinstance(manifest, Manifest):
            if _is_superseded(manifest, newest):
                continue
            yield _collected(store, manifest, asked_in)
        elif manifest is not None:
            yield manifest


def _ended_runs(store: ArtifactStore) -> tuple[list[tuple[str, int]], list[str]]:
    """Return the run and generation of every manifest, and a sentence on each name that is out of place."""
    ended, odd = [], dict[str, None]()
    for name in store.names(RUNS_PREFIX):
        run = parse_manifest_key(name)
        beginning = shortest_odd(name)
        if beginning is not None:
            odd[f"{beginning} is no key of this project: rename or remove it"] = None
        elif run is not None:
            ended.append(run)
        elif name.endswith("/manifest.json"):
            odd[f"{name} is no manifest's place: rename or remove it"] = None
    return ended, list(odd)


def collect_files(
    store: ArtifactStore,
    *,
    csv_file: Path | TextIO | None,
    json_file: Path | None,
    sweep_id: str | None = None,
) -> Collection:
    """Collect, and write what was found to the files that are named, each whole or not at all.

    Raises CollectTargetError, UnknownRunError, StorageUnavailableError.
    """
    targets = [_target(file) for file in (csv_file, json_file) if isinstance(file, Path)]
    if len(targets) == 2 and targets[0] == targets[1]:
        raise CollectTargetError(f"{csv_file} cannot be both the table and the list; name two files")
    names, problems, count = set[str](), [], 0
    with tempfile.TemporaryFile("w+", encoding="utf-8") as spool:
        for found in records_in(store, sweep_id=sweep_id):
            if isinstance(found, str):
                problems.append(found)
                continue
            fields = found.record.model_dump(mode="json")
            names |= dict(leaves(fields)).keys()
            spool.write(json.dumps([_plain(found), fields], ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
        if csv_file is not None:
            with _opened(csv_file) as sink:
                _write_csv(sink, spool, columns_of(names))
        if json_file is not None:
            with _opened(json_file) as sink:
                _write_json(sink, spool)
    return Collection(num_records=count, problems=tuple(problems))


def _write_csv(sink: IO[str], spool: IO[str], names: list[str]) -> None:
    """Write a table with a header; null is an empty cell, true and false as JSON has them."""
    rest = [name for name in names if name not in PLAIN_COLUMNS]
    writer = csv.writer(_Lines(sink), lineterminator="\r\n")
    writer.writerow([*PLAIN_COLUMNS, *rest])
    for plain, fields in _lines(spool):
        cells = dict(leaves(fields))
        writer.writerow(map(_cell, [*plain, *(cells.get(name) for name in rest)]))


class _Lines:
    """Writes rows that end in a line feed; told so itself, the writer would not quote a carriage return."""

    def __init__(self, sink: IO[str]) -> None:
        self._sink = sink

    def write(self, row: str) -> None:
        self._sink.write(row.removesuffix("\r\n") + "\n")


def _write_json(sink: IO[str], spool: IO[str]) -> None:
    """Write one JSON list, a record per line."""
    separator = "[\n"
    for _, fields in _lines(spool):
        sink.write(separator + json.dumps(fields, ensure_ascii=False, separators=(",", ":")))
        separator = ",\n"
    sink.write("[]\n" if separator == "[\n" else "\n]\n")


def _lines(spool: IO[str]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    spool.seek(0)
    for line in spool:
        plain, fields = json.loads(line)
        yield plain, fields


def _plain(found: Collected) -> list[str]:
    prompt = str(found.record.request.get("prompt", ""))
    return [found.record.run_id, found.sweep, found.label, prompt, found.film]


def _manifest(store: ArtifactStore, run_id: str, generation: int | None) -> Manifest | str | None:
    """Return a manifest (the newest where no generation is named), or what is wrong with it."""
    try:
        if generation is None:
            return latest_manifest(store, run_id)
        return read_manifest(store, run_id, generation)
    except (DamagedArtifactError, StorageAddressError) as error:  # a sweep may name a run that cannot exist
        return str(error)


def _is_superseded(manifest: Manifest, newest: Mapping[str, int]) -> bool:
    """Say whether a generation was cancelled before it ran, and a later one has ended."""
    never_ran = manifest.status is JobStatus.CANCELLED and "benchmark" not in manifest.files
    return never_ran and manifest.generation < newest.get(manifest.run_id, 0)


def _collected(store: ArtifactStore, manifest: Manifest, asked_in: "_Sweeps") -> Collected | str:
    try:
        record = read_record(store, manifest)
    except DamagedArtifactError as error:
        return str(error)
    if record is None:
        if manifest.status is JobStatus.CANCELLED:
            return f"run {manifest.run_id}, generation {manifest.generation}: cancelled before it ran"
        return f"run {manifest.run_id}, generation {manifest.generation}: its manifest names no record"
    sweep, label = asked_in.labels.get(manifest.run_id, ("", ""))
    film = manifest.files.get("video") if manifest.status is JobStatus.SUCCEEDED else None
    return Collected(record=record, sweep=sweep, label=label, film=film.name if film else "")


class _Label(Told):
    run_id: str
    label: str = ""


class _SweepLabels(Told):
    """What a table needs of sweep.json; the jobs in it would take room."""

    sweep_id: str
    created_at: str
    runs: list[_Label]


class _Sweeps:
    """Which sweep asked for a run last, and what it called it."""

    labels: Mapping[str, tuple[str, str]]
    problems: list[str]
    """One sentence per sweep that cannot be read: that costs its labels, never a record."""

    def __init__(self, store: ArtifactStore, *, only: str | None) -> None:
        self.labels, self.problems = {}, []
        if only is not None:
            try:
                sweep = read_sweep(store, only)
            except StorageAddressError:
                sweep = None
            if sweep is None:
                raise UnknownRunError(only, storage_url=store.url)
            self.labels = {run.run_id: (only, run.label) for run in sweep.runs}
            return
        found = dict[str, tuple[str, str, str]]()
        for sweep_id in [
            key.split("/")[1] for key in store.list(SWEEPS_PREFIX) if key.endswith("/sweep.json")
        ]:
            try:
                labels = read_artifact(
                    store, sweep_key(sweep_id), model=_SweepLabels, limit_bytes=limits.SWEEP_BYTES
                )
            except DamagedArtifactError as error:
                self.problems.append(f"no labels of its runs: {error}")
                continue
            for run in labels.runs if labels else ():
                told = (labels.created_at if labels else "", sweep_id, run.label)
                found[run.run_id] = max(found.get(run.run_id, told), told)
        self.labels = {run_id: (sweep_id, label) for run_id, (_, sweep_id, label) in found.items()}


def _target(path: Path) -> Path:
    """Return the file that a path leads to; it need not be there. Raises CollectTargetError."""
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            raise CollectTargetError(f"{path} is a folder or a device; name a file")
    except OSError as error:
        raise CollectTargetError(f"cannot write {path}: {error.strerror}") from None
    return target


@contextmanager
def _opened(target: Path | TextIO) -> Iterator[IO[str]]:
    """Open a file that gets its name when it is whole, or pass a stream through."""
    if not isinstance(target, Path):
        yield target
        return
    path = _target(target)
    unfinished = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("w", encoding="utf-8", newline="") as sink:
            yield sink
        unfinished.replace(path)
    except OSError as error:
        raise CollectTargetError(f"cannot write {target}: {error.strerror}") from None
    finally:
        with suppress(OSError):  # gone after the rename; where nothing can be written there is none
            unfinished.unlink()


def _cell(value: str | int | float | bool | None) -> str | int | float:
    """Return what a cell holds: a text that a spreadsheet would run gets an apostrophe, numbers stay so."""
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return f"'{value}"
    return json.dumps(value) if isinstance(value, bool) else value
