"""`h3 collect`: benchmark records from storage as a table and a list."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from client.cli_app import app
from client.errors import ClientSettingsError, CollectTargetError
from client.session import Session, command
from queue_schemas.errors import EXIT_OK
from storage.local import LocalStore
from storage.uri import open_store


@command(
    app, example="h3 collect --csv records.csv --json records.json", without=["as_json", "redis", "fleet"]
)
def collect(
    session: Session,
    *,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Table to write, its folders too; - is standard output."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="JSON list to write, its folders too.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option("--sweep", metavar="ID", help="Only the runs of that sweep.")
    ] = None,
) -> int:
    """Write the benchmark records of all runs in storage as one table and one JSON list. Asks no queue."""
    from client.collect import collect_files  # noqa: PLC0415 - other commands need no csv

    if csv_file is None and json_file is None:
        raise CollectTargetError("nothing to write; name --csv FILE, --json FILE or both")
    if json_file == Path("-"):
        raise CollectTargetError("--json writes to a file; - stands for standard output with --csv only")
    store = open_store(session.settings.storage_url)
    if isinstance(store, LocalStore) and not store.root.is_dir():
        raise ClientSettingsError(f"there is no storage folder {store.root}; name the node's by --storage")
    to_stdout = csv_file == Path("-")
    found = collect_files(
        store, csv_file=sys.stdout if to_stdout else csv_file, json_file=json_file, sweep_id=sweep
    )
    for problem in found.problems:
        session.note(f"left out: {problem}")
    files = {"csv": None if to_stdout else csv_file, "json": json_file}
    written = {kind: str(file) for kind, file in files.items() if file is not None}
    if not to_stdout:  # the table is all that standard output holds
        counted = f"{found.num_records} records in {', '.join(written.values())}"
        left_out = f", {len(found.problems)} left out" if found.problems else ""
        session.console.print(f"{counted}{left_out}", soft_wrap=True)
        session.emit({"records": found.num_records, "problems": list(found.problems), **written})
    return EXIT_OK
