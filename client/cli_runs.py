"""`h3 status`, `follow`, `fetch` and `cancel`: what to do with runs that were submitted before.

Every one of them takes whole ids, or eight or more characters of one that fit no other.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import typer

from client.cli_app import app
from client.fetch import fetch_runs
from client.handle import RunHandle
from client.report import follow_to_end, read_results, run_line
from client.session import Session, command
from queue_schemas.errors import EXIT_NO, EXIT_OK
from queue_schemas.events import JobStatus
from storage.errors import StorageUnavailableError

_QUEUE_SECONDS: Final = 8.0
"""How long a cancel waits for a Redis that starts anew."""
_RUN_ID: Final = re.compile(r"[0-9a-f]{32}(-[^/]+)?")

Ids = Annotated[list[str], typer.Argument(help="Runs or sweeps; 8 characters do.", metavar="ID...")]


@command(app, example="h3 status sweep-20260301-101500-3fa2c1 --json")
def status(session: Session, ids: Ids) -> int:
    """Say where runs stand, now. Code 1 when one failed or was cancelled."""
    from client.show import print_statuses  # noqa: PLC0415 - only for people

    runs = _runs(session, ids)
    statuses = {s.run_id: s for s in session.client.statuses_of(runs)}
    bad = [run for run in runs if statuses[run.run_id].status in (JobStatus.FAILED, JobStatus.CANCELLED)]
    results = read_results(session, bad)
    print_statuses(session.console, runs, statuses=statuses, results=results)
    lines = [run_line(run, status=statuses[run.run_id], result=results.get(run.run_id)) for run in runs]
    session.emit({"runs": lines})
    return EXIT_NO if bad else EXIT_OK


@command(app, example="h3 follow sweep-20260301-101500-3fa2c1")
def follow(
    session: Session,
    name: Annotated[str, typer.Argument(help="A run or a sweep; 8 characters do.", metavar="SWEEP_OR_RUN")],
) -> int:
    """Follow runs that were submitted before, until the last one has ended."""
    code, _ = follow_to_end(session, session.client.find(name))
    return code


@command(app, example="h3 fetch sweep-20260301-101500-3fa2c1 --to films")
def fetch(
    session: Session,
    ids: Ids,
    *,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Where to copy to.")] = Path(),
) -> int:
    """Copy films and their records from storage to a folder. Code 1 when a run left no film."""
    fetched = fetch_runs(session.client.store, _runs(session, ids), to=to)
    for problem in fetched.problems:
        session.note(problem)
    for told in (*fetched.files, *fetched.receipts):
        session.console.print(str(told), soft_wrap=True)
    videos = [str(path) for path in fetched.files if path.suffix == ".mp4"]
    records = [str(path) for path in fetched.files if path.suffix == ".json"]
    problems = list(fetched.problems)
    session.emit({"folder": str(to), "videos": videos, "benchmarks": records, "problems": problems})
    return EXIT_NO if problems else EXIT_OK


@command(app, example="h3 cancel sweep-20260301-101500-3fa2c1")
def cancel(
    session: Session,
    ids: Ids,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also what another sweep wants.")] = False,
) -> int:
    """Cancel runs: what waits at once, what runs at its next step. Code 1 when another sweep keeps one."""
    found: dict[str, str] = {}
    session.client.wait_for_queue(seconds=_QUEUE_SECONDS)
    for name in ids:
        try:
            outcomes = session.client.cancel(session.client.find(name), force=force)
        except StorageUnavailableError as error:
            outcomes = session.client.cancel_in_queue(name) if _RUN_ID.fullmatch(name) else {}
            if not outcomes:
                raise
            session.note(f"{error}; cancelled in the queue alone, cancel again when the store is back")
        found |= {run_id: str(outcome) for run_id, outcome in outcomes.items()}
    counts = Counter(found.values())
    session.console.print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    session.emit(
        {**counts, "runs": [{"run_id": name, "outcome": outcome} for name, outcome in found.items()]}
    )
    return EXIT_NO if counts["kept_for_others"] else EXIT_OK


def _runs(session: Session, ids: list[str]) -> list[RunHandle]:
    """Return the runs of all ids, each once, in order."""
    handles = [session.client.find(name) for name in ids]
    return list({run.run_id: run for handle in handles for run in handle.runs}.values())
