"""The `h3` application: what stands before a command's name.

Commands register themselves here; `cli.py` brings them together.
"""

from typing import Annotated

import typer

from client.options import COMMON_OPTIONS, Fleet, Json, Quiet, Redis, Storage
from queue_schemas.versions import installed_versions

PACKAGE = "h3-blackwell-runtime"

app = typer.Typer(
    name="h3",
    help="Queue MiniMax H3 generations, follow them to their files, collect their timings.",
    epilog="Example: h3 submit 'a red fox in snow' --seconds 5 --seed 7",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def version() -> str:
    """Return the installed version; a source tree without metadata says so."""
    return installed_versions([PACKAGE]).get(PACKAGE, "unknown (a source tree that is not installed)")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"h3 {version()}")
        raise typer.Exit


@app.callback()
def common(  # noqa: PLR0917 - typer calls it by name
    ctx: typer.Context,
    redis: Redis = None,
    storage: Storage = None,
    fleet: Fleet = None,
    as_json: Json = False,
    quiet: Quiet = False,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    values = (redis, storage, fleet, as_json, quiet)
    ctx.obj = dict(zip(COMMON_OPTIONS, values, strict=True))
