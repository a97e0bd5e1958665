"""What `python -m model.synthetic` does: one checkpoint file of any published kind, with random weights.

Exit codes: 0 written; 2 refused, with one sentence; 3 the disk failed; 130 interrupted. After any but 0 there
is no new file.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from model.checkpoints.descriptions import VARIANTS, HeaderDescription, describe, load_table
from model.checkpoints.header import read_header
from model.synthetic.twins import Twin
from model.synthetic.writer import OnBytes, file_bytes, write_file, write_sparse
from queue_schemas.command_lines import run_command_line
from queue_schemas.errors import EXIT_RUNTIME

SECONDS_BETWEEN_LINES: Final = 5.0
HELP: Final = """Write one H3 checkpoint file: the names, shapes, dtypes, markers and layouts of a published
one, random weights, the same bytes every time.

OUT is the .safetensors file to write, or a folder that gets VARIANT.safetensors.

A tiny file is whole and valid, a few megabytes, and every tiny file fits to every other: a quantised one
makes the film of the bf16 one within its format's error. A full file has the real sizes and loads like a real
one; its large matrices repeat their first rows. A sparse file is the published header and the quantisation
markers, written in a moment at any size: an inspector can read it, and no loader takes it.

The variants, with their full sizes:

\b
{variants}
"""
EPILOG: Final = """\b
Examples:
  python -m model.synthetic --variant dit_pruned_nvfp4 models/diffusion_models/
  python -m model.synthetic --variant dit_pruned_nvfp4 --size full --sparse nvfp4.safetensors
  python -m model.synthetic --variant te_qwen3vl_nvfp4_awq --twin swapped-nibbles bad.safetensors
"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
Variant = StrEnum("Variant", {name: name for name in VARIANTS})  # type: ignore[misc] # names are data


class SizeName(StrEnum):
    TINY = "tiny"
    FULL = "full"


def _variant_lines() -> str:
    tables = {name: load_table(name) for name in VARIANTS}
    return "\n".join(
        f"  {name:24}{table['expect']['file_bytes'] / 1e9:6.2f} GB  {table['files'][0]}"
        for name, table in tables.items()
    )


@app.command(help=HELP.format(variants=_variant_lines()), epilog=EPILOG, no_args_is_help=True)
def write(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File or folder to write")],
    *,
    variant: Annotated[Variant, typer.Option(help="Which kind of file", metavar="NAME")],
    size: Annotated[SizeName, typer.Option(help="Sizes of a test, or the published ones")] = SizeName.TINY,
    sparse: Annotated[
        bool, typer.Option("--sparse", help="Header and markers only, holes elsewhere")
    ] = False,
    twin: Annotated[
        Twin | None,
        typer.Option(help="Write a tiny file with one fault, to try a reader on", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line also on a terminal")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors")] = False,
) -> None:
    description = describe(variant.value, size.value)
    path = out if out.suffix == ".safetensors" and not out.is_dir() else out / f"{variant.value}.safetensors"
    total = file_bytes(description, sparse=sparse)
    _check(path, total_bytes=0 if sparse else total, overwrite=overwrite)
    if twin is not None and (sparse or size is not SizeName.TINY):
        raise typer.BadParameter("--twin goes with tiny files alone; leave out --sparse and --size full")

    began = time.monotonic()
    if sparse:
        write_sparse(path, description)
    else:
        with _progress(total, quiet=quiet or size is SizeName.TINY) as on_bytes:
            _write_values(path, description, twin=twin, on_bytes=on_bytes)
    if not quiet:
        header = read_header(path)
        facts = {
            "path": str(path),
            "variant": variant.value,
            "size": size.value,
            "sparse": sparse,
            "twin": twin,
            "tensors": len(header.tensors),
            "bytes": header.size_bytes,
            "header_sha256": header.sha256,
            "published_header": header.sha256 == description.expect.get("header_sha256"),
            "seconds": round(time.monotonic() - began, 3),
        }
        _show(facts, as_json=as_json or not sys.stdout.isatty())


def main() -> None:
    """Entry point. A termination signal counts as Ctrl-C, so that it cleans up the same way."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; return its exit code."""
    try:
        return run_command_line(
            app,
            arguments,
            name="python -m model.synthetic",
            interrupted="interrupted; nothing was written",
            say=lambda message: typer.echo(f"error: {message}", err=True),
        )
    except OSError as error:
        typer.echo(f"error: nothing was written: {error.strerror}: {error.filename or 'the file'}", err=True)
        return EXIT_RUNTIME


def _check(path: Path, *, total_bytes: int, overwrite: bool) -> None:
    """Refuse what would cost a person's file or end on a full disk."""
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder; name a file in it")
    if os.path.lexists(path) and not overwrite:
        raise typer.BadParameter(f"{path} exists; add --overwrite to replace it, or choose another name")
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise typer.BadParameter(f"{nearest} is no folder, so that nothing can be written below it")
    free = shutil.disk_usage(nearest).free
    if not os.access(nearest, os.W_OK) or not shutil.disk_usage(nearest).total:  # as /proc is no disk
        raise typer.BadParameter(f"{nearest} takes no files; choose another folder")
    if free < total_bytes:
        raise typer.BadParameter(
            f"the file needs {total_bytes / 1e9:.1f} GB and {nearest} has {free / 1e9:.1f} GB left;"
            " choose another disk"
        )


def _write_values(
    path: Path, description: HeaderDescription, *, twin: Twin | None, on_bytes: OnBytes
) -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads slow small tensors a hundredfold
    if twin is None:
        from model.synthetic.values import Values

        write_file(path, description, Values(description).bytes, on_bytes=on_bytes)
        return
    from model.synthetic.faults import write_twin

    try:
        write_twin(path, description, twin)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[OnBytes]:
    """Show on stderr how far a file is: a bar on a terminal, else a line every few seconds."""
    console = Console(stderr=True)
    if quiet:
        yield lambda count: None
    elif console.is_terminal:
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda count: bar.advance(task, count)
    else:
        yield _Lines(total).advance


class _Lines:
    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.began = self.told = time.monotonic()

    def advance(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.told >= SECONDS_BETWEEN_LINES:
            self.told = now
            rate = self.done / (now - self.began)
            typer.echo(f"{self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB, {rate / 1e6:.0f} MB/s", err=True)


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts, separators=(",", ":")))
        return
    content = "header and markers, holes elsewhere" if facts["sparse"] else "random weights"
    fault = f", with {facts['twin']}" if facts["twin"] else ""
    published = "; its header is the published one, byte for byte" if facts["published_header"] else ""
    typer.echo(
        f"wrote {facts['path']}: {facts['tensors']:,} tensors, {facts['bytes']:,} bytes"
        f" ({content}{fault}) in {facts['seconds']:.1f} s{published}"
    )
