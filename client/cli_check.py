"""`h3 check`: what a job, a sweep or some files would cost, and what would become of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from client.cli_app import app
from client.command_fields import job_fields, with_lists
from client.errors import SweepInputError
from client.given_files import read_given_file
from client.given_references import parse_reference
from client.options import NoFetch
from client.session import Session, command
from client.sweep_references import with_references_beside
from queue_schemas import limits
from queue_schemas.errors import EXIT_OK, InvalidRequestError
from queue_schemas.requests import Delivery, load_json_object
from storage.base import ArtifactStore
from storage.local import LocalStore
from storage.uri import open_store

_ENDINGS: Final = (".json", ".yaml", ".yml")
_SWEEP_FIELDS: Final = ("prompts", "seeds", "axes")
_PROMPT: Final = "a film"
_RECORDS: Final = 400
"""So many tell enough of how fast a fleet is."""


@command(
    app,
    example="h3 check subject.png motion.mp4,audio=off --width 960 --height 544 --seconds 10",
    job_options=True,
    without=["redis", "fleet"],
)
def check(
    session: Session,
    fields: Mapping[str, Any],
    *,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB|SWEEP|FILE...]",
            help="A job or request body (.json), a sweep file (.yaml, .json), or files: the references of a"
            " job that is otherwise what the options say.",
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="Counted with the files.")] = None,
    no_fetch: NoFetch = False,
) -> int:
    """Say what a job would cost, and what would become of its files, without GPU, queue or store.

    Files are read, scaled and counted as the engine does. A store (--storage) is asked for files that are
    named by key, and for how long films took that the fleet has made.
    """
    from client.checks import check_jobs  # noqa: PLC0415 - other commands need none of it
    from client.media_files import MediaFiles  # noqa: PLC0415

    asked, is_sweep, name = _asked(targets or [], fields, prompt=prompt)
    store = _store(session)
    with MediaFiles(store, fetch=not no_fetch) as files, _naming(name):
        checked = check_jobs(
            asked,
            checkpoint=session.settings.checkpoint,
            defaults=session.settings.job_defaults(),
            files=files,
            records=_records(session, store),
        )
    if session.human:
        from client.show_checks import print_checks  # noqa: PLC0415 - only for people

        print_checks(session.console, checked)
    if is_sweep:
        lines = [{"runs": each.runs, **each.report.model_dump(mode="json")} for each in checked]
        session.emit({"runs": len(asked), "checks": lines})
    else:
        session.emit(checked[0].report.model_dump(mode="json"))
    return EXIT_OK


def _asked(
    targets: list[str], fields: Mapping[str, Any], *, prompt: str | None
) -> tuple[list[tuple[str, Mapping[str, Any]]], bool, str | None]:
    """Return what to check as (label, job fields), whether it is a sweep, and the file that says so."""
    documents = [target for target in targets if target.lower().endswith(_ENDINGS)]
    if documents and len(targets) > 1:
        raise SweepInputError(f"{documents[0]} is a job or a sweep; check it by itself")
    if documents:
        path, own = Path(documents[0]), with_lists(fields)
        own |= {"prompt": prompt} if prompt is not None else {}
        document = _read_json(path) if path.suffix.lower() == ".json" else None
        if document is None or any(name in document for name in _SWEEP_FIELDS):
            from client.sweep_files import read_sweep_file  # noqa: PLC0415 - yaml

            return list(read_sweep_file(path, fields=own).runs), True, str(path)
        job = {name: value for name, value in document.items() if name not in Delivery.model_fields}
        return [("", {**with_references_beside(job, path.parent), **job_fields(fields)})], False, str(path)
    job = {"prompt": prompt or _PROMPT, **job_fields(fields)}
    if targets:
        job["references"] = [parse_reference(target) for target in targets] + job.get("references", [])
    elif not fields and prompt is None:
        raise SweepInputError("nothing to check; name a job, a sweep or files, or give options")
    return [("", job)], False, None


def _read_json(path: Path) -> dict[str, Any]:
    data = read_given_file(path, limit_bytes=limits.SWEEP_BYTES, what="job or sweep")
    try:
        return load_json_object(data, limit_bytes=limits.SWEEP_BYTES)
    except InvalidRequestError as error:
        raise SweepInputError(f"{path}: {error}") from None


@contextmanager
def _naming(file: str | None) -> Iterator[None]:
    """Name the file in whose jobs something is refused."""
    try:
        yield
    except InvalidRequestError as error:
        raise SweepInputError(f"{file}: {error}" if file else str(error)) from None


def _store(session: Session) -> ArtifactStore | None:
    """Return the store that was named, or the default folder where there is one."""
    store = open_store(session.settings.storage_url)
    is_there = not isinstance(store, LocalStore) or store.root.is_dir()
    return store if session.storage_flag is not None or is_there else None


def _records(session: Session, store: ArtifactStore | None) -> Any:
    """Return what the store's records say of the fleet's devices; None without a store."""
    if store is None:
        return None
    from client.collect import Collected, records_in  # noqa: PLC0415 - needs csv and more
    from client.expected import Records  # noqa: PLC0415

    found = islice(records_in(store), _RECORDS)
    return Records(each.record for each in found if isinstance(each, Collected))
