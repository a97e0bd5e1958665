"""`h3 nodes`, `jobs`, `doctor` and `demo`: the fleet itself, seen from here."""

from typing import Annotated

import typer

from client.cli_app import app
from client.session import Session, command
from queue_schemas.errors import EXIT_NO, EXIT_OK
from storage.uri import folder_of


@command(app, example="h3 nodes --json")
def nodes(session: Session) -> int:
    """List the live nodes: what each serves, on what, and where it writes. Code 1 when there is none."""
    from client.show_fleet import print_nodes  # noqa: PLC0415 - only for people

    cards = session.client.nodes()
    print_nodes(session.console, cards)
    if not cards:
        session.note(
            f"no live node in fleet {session.client.fleet!r}; start one: {session.client.start_hint}"
        )
    session.emit({"nodes": [card.model_dump(mode="json") for card in cards]})
    return EXIT_OK if cards else EXIT_NO


@command(app, example="h3 jobs")
def jobs(session: Session) -> int:
    """Say what waits and what runs, by priority and by what a node must have for it."""
    from client.show_fleet import print_jobs  # noqa: PLC0415 - only for people

    overview = session.client.jobs()
    print_jobs(session.console, overview)
    session.emit(overview.as_line())
    return EXIT_OK


@command(app, example="h3 doctor --storage s3://films/h3")
def doctor(session: Session) -> int:
    """Check queue, storage and nodes; say what is wrong and what to do. Code 1 when anything is."""
    from client.doctor import examine  # noqa: PLC0415 - other commands need none of it
    from client.show_fleet import print_findings  # noqa: PLC0415

    findings = examine(session.settings)
    print_findings(session.console, findings)
    faults = [finding for finding in findings if not finding.is_fine]
    session.emit({"faults": len(faults), "findings": [finding.as_line() for finding in findings]})
    return EXIT_NO if faults else EXIT_OK


DemoFolder = Annotated[
    str | None, typer.Option("--storage", metavar="FOLDER", help="Where films are left [outputs/demo].")
]


@command(app, example="h3 demo --fresh", without=["redis", "fleet"], storage=DemoFolder)
def demo(
    session: Session,
    fresh: Annotated[bool, typer.Option("--fresh", help="Remove the demo's earlier films first.")] = False,
) -> int:
    """Start a node of its own on this machine's CPU and sweep 2 prompts x 2 seeds through it.

    Films, records and summary.json are left in outputs/demo, or in the folder that --storage names, which
    must be new, empty or the demo's own.
    """
    from client.demo import run_demo  # noqa: PLC0415 - other commands start no processes

    return run_demo(session, folder=folder_of(session.storage_flag or "outputs/demo"), fresh=fresh)
