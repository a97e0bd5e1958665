"""Read back what a run left in storage: its manifests, its record, its sweep, and where its files are.

A manifest that does not speak of the run under whose name it lies is damage, never an answer. Knows no queue.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from benchmarks.records import RecordError, parse_record
from client.errors import DamagedArtifactError
from client.handle import RunResult
from queue_schemas import limits
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.errors import explain
from queue_schemas.events import JobStatus
from queue_schemas.results import Manifest
from queue_schemas.sweeps import Sweep
from storage.base import ArtifactStore
from storage.errors import ArtifactTooLargeError, StorageAddressError
from storage.layout import check_key, manifest_key, sweep_key

logger = logging.getLogger(__name__)

_PARALLEL = 16


def read_manifest(store: ArtifactStore, run_id: str, generation: int) -> Manifest | None:
    """Return the manifest of one generation, None before its end. Raises DamagedArtifactError."""
    key = manifest_key(run_id, generation)
    manifest = read_artifact(store, key, model=Manifest, limit_bytes=limits.RESULT_BYTES)
    if manifest is not None and (manifest.run_id, manifest.generation) != (run_id, generation):
        raise DamagedArtifactError(key, f"it speaks of run {manifest.run_id}/{manifest.generation}")
    return manifest


def latest_manifest(store: ArtifactStore, run_id: str) -> Manifest | None:
    """Return the newest manifest of a run. Raises DamagedArtifactError."""
    found = None
    for manifest in _manifests(store, run_id):
        found = manifest
    return found


def newest_readable(store: ArtifactStore, run_id: str) -> Manifest | None:
    """Return the newest manifest of a run up to one that is damaged, which costs a warning."""
    found = None
    try:
        for manifest in _manifests(store, run_id):
            found = manifest
    except DamagedArtifactError as error:
        logger.warning("%s", error)
    return found


def _manifests(store: ArtifactStore, run_id: str) -> Iterator[Manifest]:
    """Yield a run's manifests; generations are made one after the other, without gaps."""
    generation = 1
    while (manifest := read_manifest(store, run_id, generation)) is not None:
        yield manifest
        generation += 1


def succeeded(manifest: Manifest | None) -> bool:
    return manifest is not None and manifest.status is JobStatus.SUCCEEDED


def latest_manifests(
    store: ArtifactStore,
    run_ids: Sequence[str],
    *,
    read: Callable[[ArtifactStore, str], Manifest | None] = latest_manifest,
) -> list[Manifest | None]:
    """Return the newest manifest of every run, in order; a store behind a network is asked in parallel."""
    if store.url.startswith("file:") or len(run_ids) < _PARALLEL:
        return [read(store, run_id) for run_id in run_ids]
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(lambda run_id: read(store, run_id), run_ids))


def read_sweep(store: ArtifactStore, sweep_id: str) -> Sweep | None:
    """Return a sweep as it was asked for, None when there is none. Raises DamagedArtifactError."""
    return read_artifact(store, sweep_key(sweep_id), model=Sweep, limit_bytes=limits.SWEEP_BYTES)


def read_record(store: ArtifactStore, manifest: Manifest) -> BenchmarkRecord | None:
    """Return the record of the attempt that a manifest names. Raises DamagedArtifactError."""
    file = manifest.files.get("benchmark")
    if file is None:
        return None
    try:
        data = store.read_bytes(file.name, limit_bytes=limits.RECORD_BYTES)
        if data is None:
            raise DamagedArtifactError(file.name, "a manifest names it and it is missing")
        record = parse_record(data)
    except (RecordError, StorageAddressError, ArtifactTooLargeError) as error:
        raise DamagedArtifactError(file.name, str(error)) from None
    if (record.run_id, record.generation) != (manifest.run_id, manifest.generation):
        raise DamagedArtifactError(file.name, f"it speaks of run {record.run_id}/{record.generation}")
    return record


def read_result(store: ArtifactStore, manifest: Manifest) -> RunResult:
    """Return everything about a run that has ended. Raises DamagedArtifactError."""
    try:
        places = {role: store.locate(file.name) for role, file in manifest.files.items()}
    except StorageAddressError as error:
        raise DamagedArtifactError(manifest_key(manifest.run_id, manifest.generation), str(error)) from None
    succeeded = manifest.status is JobStatus.SUCCEEDED
    return RunResult(
        run_id=manifest.run_id,
        status=manifest.status,
        manifest=manifest,
        record=read_record(store, manifest),
        video=places.get("video") if succeeded else None,
        benchmark=places.get("benchmark"),
        log=places.get("log"),
    )


Model = TypeVar("Model", bound=BaseModel)


def read_artifact(store: ArtifactStore, key: str, *, model: type[Model], limit_bytes: int) -> Model | None:
    """Return what lies under a key, None for nothing. Raises DamagedArtifactError, StorageAddressError."""
    check_key(key)
    try:
        data = store.read_bytes(key, limit_bytes=limit_bytes)
        return None if data is None else model.model_validate_json(data)
    except ValidationError as error:
        raise DamagedArtifactError(key, explain(error)) from None
    except (ArtifactTooLargeError, StorageAddressError) as error:  # a link below a good name leads elsewhere
        raise DamagedArtifactError(key, str(error)) from None
