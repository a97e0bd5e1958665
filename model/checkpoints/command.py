"""The inspector behind its options: find the files, inspect each, show, write and keep what was found."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from model.checkpoints.inspection import OnBytes, inspect_file
from model.checkpoints.show import refusal_text, show_report
from model.checkpoints.targets import artifact_folder, expand, valid_text, write_artifact
from model.errors import CheckpointFileError
from queue_schemas.errors import EXIT_NO, EXIT_OK, EXIT_REFUSED, InvalidRequestError
from queue_schemas.inspections import Inspection, InspectionReport, Refusal
from queue_schemas.published import load_published, published_files
from queue_schemas.text import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the inspector was asked for."""

    json: str | None = None
    """A file for the report; `-` for stdout."""
    save: bool = False
    sha256: bool = False
    strict: bool = False
    registry: Path | None = None
    quiet: bool = False


def run(targets: Sequence[str], options: Options) -> int:
    """Inspect and report; return the exit code: 2 with a refused file, 1 with a hash that does not match."""
    try:
        registry = published_files() if options.registry is None else load_published(options.registry)
    except InvalidRequestError as error:
        return _refuse(str(error))
    files: list[Inspection] = []
    refused: list[Refusal] = []
    for path in expand(targets):
        try:
            with _hashing(path, wanted=options.sha256, quiet=options.quiet) as on_hashed:
                files.append(
                    inspect_file(path, registry=registry, strict=options.strict, on_hashed=on_hashed)
                )
        except CheckpointFileError as error:
            refused.append(
                Refusal(path=valid_text(str(path)), reason=valid_text(error.reason), offset=error.offset)
            )
    report = InspectionReport(files=tuple(files), refused=tuple(refused))
    try:
        _write(report, options)
    except OSError as error:
        return _refuse(f"the report cannot be written: {error}")
    for refusal in refused:
        typer.echo(refusal_text(refusal), err=True)
    wrong = [found for found in files if found.hash is not None and found.hash.verdict == "mismatch"]
    for found in wrong:
        typer.echo(f"{printable(found.path)}: its sha256 is not the published one", err=True)
    return EXIT_REFUSED if refused else EXIT_NO if wrong else EXIT_OK


def _write(report: InspectionReport, options: Options) -> None:
    text = report.model_dump_json()
    if options.json not in (None, "-"):
        Path(str(options.json)).write_text(text + "\n", encoding="utf-8")
    if not options.quiet:
        if options.json == "-" or not sys.stdout.isatty():
            typer.echo(text)
        else:
            show_report(Console(), report)
    if options.save:
        for target in _save(report.files):
            typer.echo(f"saved {printable(str(target))}", err=True)


def _save(files: Sequence[Inspection]) -> Iterator[Path]:
    """Keep each inspection by its file's name; of equal names in one run, the later with their identity."""
    used: set[Path] = set()
    for found in files:
        path = Path(found.path)
        folder = artifact_folder(path, working=Path.cwd())
        name = path.stem
        if folder / name in used:
            name = f"{name}-{found.container.header_sha256[:8]}"
        used.add(folder / name)
        text = InspectionReport(files=(found,), refused=()).model_dump_json(indent=1)
        yield write_artifact(folder, name, text + "\n")


@contextmanager
def _hashing(path: Path, *, wanted: bool, quiet: bool) -> Iterator[OnBytes | None]:
    """Show on a terminal how far the hash is; gives None where no hash is wanted."""
    if not wanted:
        yield None
        return
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    shown = console.is_terminal and not quiet
    with Progress(*columns, console=console, disable=not shown, transient=True) as progress:
        size = path.stat().st_size if path.is_file() else None
        task = progress.add_task(printable(path.name), total=size)
        yield lambda count: progress.update(task, advance=count)


def _refuse(reason: str) -> int:
    typer.echo(f"error: {printable(reason)}", err=True)
    return EXIT_REFUSED
