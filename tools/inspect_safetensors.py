"""Say what checkpoint files hold: python tools/inspect_safetensors.py models/

Reads headers and markers only, without torch, so that 66 GB take a moment. A table on a terminal, one compact
JSON line when piped. Exit codes: 0; 1 for a hash that is not the published one; 2 for a file that is refused.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from model.checkpoints.command import Options, run
from queue_schemas.command_lines import run_command_line

EPILOG = "Example: python tools/inspect_safetensors.py models/ --json report.json"
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog=EPILOG)
def inspect(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="FILE|FOLDER|GLOB...", help="Checkpoint files, or folders that hold some."),
    ],
    *,
    json: Annotated[
        str | None, typer.Option(metavar="OUT", help="Write the report there; - is stdout")
    ] = None,
    save: Annotated[
        bool,
        typer.Option("--save", help="Keep artifacts/checkpoints/NAME.json at the root of the file's volume"),
    ] = False,
    sha256: Annotated[
        bool, typer.Option("--sha256", help="Hash whole files and compare with what was published")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse links, and bytes behind the last tensor")
    ] = False,
    registry: Annotated[
        Path | None, typer.Option(help="JSON file of more published files than are known here")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors")] = False,
) -> None:
    """Say what safetensors files of MiniMax H3 hold, and what this runtime can do with them."""
    options = Options(json=json, save=save, sha256=sha256, strict=strict, registry=registry, quiet=quiet)
    raise typer.Exit(run(targets, options))


if __name__ == "__main__":
    raise SystemExit(run_command_line(app, sys.argv[1:], name="python tools/inspect_safetensors.py"))
