"""Copy what runs left from storage to a folder: film, record and log, whole, with their hash checked.

Names are for people: the label, then the start of the run's id. Asks no queue.
"""

import hashlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client.errors import DamagedArtifactError, FetchTargetError
from client.handle import RunHandle
from client.outcomes import latest_manifest
from client.receipts import receipt_text
from queue_schemas.benchmark import OutputFile
from queue_schemas.events import JobStatus
from storage.base import ArtifactStore
from storage.errors import ArtifactMissingError, StorageAddressError

_EXTENSIONS: Final = {"video": ".mp4", "benchmark": ".json", "log": ".log.txt"}
_LABEL_BYTES: Final = 120
_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What lies in the folder now, and what is missing of what was asked for."""

    files: tuple[Path, ...]
    problems: tuple[str, ...]
    receipts: tuple[str, ...] = ()
    """What became of the references of each run that had some."""


def fetch_runs(store: ArtifactStore, runs: Sequence[RunHandle], *, to: Path) -> Fetched:
    """Copy film, record and log of every run that has ended; a file that is there is not copied again.

    Raises FetchTargetError, StorageUnavailableError.
    """
    files, problems, receipts = [], [], []
    for run in runs:
        try:
            manifest = latest_manifest(store, run.run_id)
        except DamagedArtifactError as error:
            problems.append(f"{_name(run)}: {error}")
            continue
        if manifest is None:
            problems.append(f"{_name(run)} has not ended")
            continue
        if manifest.status is not JobStatus.SUCCEEDED:
            said = f": {manifest.error.message}" if manifest.error else ""
            problems.append(f"{_name(run)} {manifest.status}{said}")
        if manifest.references:
            receipts.append(f"{_name(run)}: {receipt_text(manifest.references)}")
        for role, extension in _EXTENSIONS.items():
            file = manifest.files.get(role)
            if file is None or (role == "video" and manifest.status is not JobStatus.SUCCEEDED):
                continue
            try:
                files.append(_copy(store, file, to / f"{_name(run)}{extension}"))
            except DamagedArtifactError as error:
                problems.append(str(error))
    return Fetched(files=tuple(files), problems=tuple(problems), receipts=tuple(receipts))


def _copy(store: ArtifactStore, file: OutputFile, target: Path) -> Path:
    """Copy one file, whole or not at all. Raises DamagedArtifactError when storage holds another content."""
    try:
        if target.is_file() and target.stat().st_size == file.size_bytes and _sha256(target) == file.sha256:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.part")
        try:
            with store.open(file.name) as source, unfinished.open("wb") as sink:
                shutil.copyfileobj(source, sink, _CHUNK_BYTES)
            if _sha256(unfinished) != file.sha256:
                raise DamagedArtifactError(file.name, "its content is not what its manifest says")
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except ArtifactMissingError:
        raise DamagedArtifactError(file.name, "a manifest names it and it is missing") from None
    except StorageAddressError as error:
        raise DamagedArtifactError(file.name, str(error)) from None
    except OSError as error:
        raise FetchTargetError(
            f"cannot write {target}: {error.strerror}; name another folder by --to"
        ) from None
    return target


def _name(run: RunHandle) -> str:
    job, dash, suffix = run.run_id.partition("-")
    words = re.sub(r"[^\w.-]+", "-", run.label).strip("-.")
    label = words.encode(errors="replace")[:_LABEL_BYTES].decode(errors="ignore")  # not half a character
    return f"{label}{'-' if label else ''}{job[:12]}{dash}{suffix}"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
