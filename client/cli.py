"""The `h3` command: submit, sweep, status, follow, collect, demo.

Exit codes: 0 done; 1 a followed run did not succeed; 2 refused input; 3 the queue or storage failed; 130
interrupted. What is printed where is `session.py`'s; what a person sees is `show.py`'s.
"""

import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from client.errors import CollectTargetError, SweepInputError
from client.handle import RunHandle, RunStatus, SweepHandle
from client.options import COMMON_OPTIONS, Fleet, Json, Quiet, Redis, Storage
from client.report import count_outcomes, report, run_line, submitted_line
from client.session import Session, command, say
from client.sweeps import parse_seeds, read_prompts
from queue_schemas import limits
from queue_schemas.errors import EXIT_INTERRUPTED, EXIT_OK
from queue_schemas.geometry import FPS, frames_for
from storage.uri import folder_of, open_store

app = typer.Typer(
    name="h3",
    help="Queue MiniMax H3 generations, follow them to their files, collect their timings.",
    epilog="Example: h3 submit 'a red fox in snow' --seconds 5 --seed 7",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Follow = Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for the result, with progress.")]


def main() -> None:
    """Entry point of `h3`. A termination signal counts as Ctrl-C, so that it cleans up the same way."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        say("interrupted")
        raise SystemExit(EXIT_INTERRUPTED) from None


@app.callback()
def common(  # noqa: PLR0917 - typer calls it by name
    ctx: typer.Context,
    redis: Redis = None,
    storage: Storage = None,
    fleet: Fleet = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    values = (redis, storage, fleet, as_json, quiet)
    ctx.obj = dict(zip(COMMON_OPTIONS, values, strict=True))


@command(app, example="h3 submit 'a red fox in snow' --seconds 5 --seed 7", job_options=True)
def submit(
    session: Session,
    fields: Mapping[str, Any],
    prompt: Annotated[str, typer.Argument(help="What the film shows and sounds like.")],
    follow: Follow = True,
) -> int:
    """Queue one generation and, unless told otherwise, follow it to its files."""
    handle = session.client.submit({**_with_frames(fields), "prompt": prompt})
    return _after_submit(session, handle, follow=follow)


@command(app, example="h3 sweep --prompts prompts.txt --seeds 4 --seconds 5", job_options=True)
def sweep(
    session: Session,
    fields: Mapping[str, Any],
    prompts: Annotated[
        Path, typer.Option("--prompts", metavar="FILE", help="One prompt per line; # starts a comment.")
    ],
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="N|S,S,...", help="How many to draw, or the seeds themselves.")
    ] = "1",
    follow: Follow = True,
) -> int:
    """Queue every prompt of a file with every seed, and follow them all.

    Drawn seeds are the same for every prompt. With --seed they are that seed and others that follow from it.
    """
    base = _with_frames(fields)
    chosen = parse_seeds(seeds, base_seed=base.pop("seed", None))
    handle = session.client.sweep_named(read_prompts(prompts), chosen, fields=base)
    return _after_submit(session, handle, follow=follow)


@command(app, example="h3 status sweep-20260301-101500-3fa2c1 --json")
def status(
    session: Session, ids: Annotated[list[str], typer.Argument(help="Runs or sweeps.", metavar="ID...")]
) -> int:
    """Say where runs stand, now."""
    from client.show import status_table  # noqa: PLC0415 - only for people

    handles = [session.client.find(name) for name in ids]
    runs = {run.run_id: run for handle in handles for run in handle.runs}
    statuses = {s.run_id: s for handle in handles for s in session.client.statuses(handle)}
    session.console.print(status_table(runs.values(), statuses))
    session.emit({"runs": [run_line(run, status=statuses[run.run_id]) for run in runs.values()]})
    return EXIT_OK


@command(app, example="h3 follow sweep-20260301-101500-3fa2c1")
def follow(
    session: Session,
    name: Annotated[str, typer.Argument(help="A run or a sweep.", metavar="SWEEP_OR_RUN")],
) -> int:
    """Follow runs that were submitted before, until the last one has ended."""
    return _follow_to_end(session, session.client.find(name))


@command(
    app, example="h3 collect --csv records.csv --json records.json", without=["as_json", "redis", "fleet"]
)
def collect(
    session: Session,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Table to write.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="JSON list to write.")
    ] = None,
) -> int:
    """Write the benchmark records of all runs in storage as one table and one JSON list. Asks no queue."""
    from client.collect import collect_files  # noqa: PLC0415 - other commands need no csv

    if csv_file is None and json_file is None:
        raise CollectTargetError("nothing to write; name --csv FILE, --json FILE or both")
    found = collect_files(open_store(session.settings.storage_url), csv_file=csv_file, json_file=json_file)
    for problem in found.problems:
        session.note(f"left out: {problem}")
    files = {"csv": csv_file, "json": json_file}
    written = {kind: str(file) for kind, file in files.items() if file is not None}
    session.console.print(f"{len(found.records)} records in {', '.join(written.values())}")
    session.emit({"records": len(found.records), "problems": list(found.problems), **written})
    return EXIT_OK


@command(app, example="h3 demo --fresh", without=["redis", "fleet"])
def demo(
    session: Session,
    fresh: Annotated[bool, typer.Option("--fresh", help="Empty the demo's folder first.")] = False,
) -> int:
    """Start a node of its own on this machine's CPU and sweep 2 prompts x 2 seeds through it.

    Films, records and summary.json are left in outputs/demo, or in the folder that --storage names.
    """
    from client.demo import run_demo  # noqa: PLC0415 - other commands start no processes

    return run_demo(session, folder=folder_of(session.storage_flag or "outputs/demo"), fresh=fresh)


def _after_submit(session: Session, handle: RunHandle | SweepHandle, *, follow: bool) -> int:
    if follow:
        return _follow_to_end(session, handle)
    _tell_notes(session, handle)
    session.console.print(f"{count_outcomes(handle)}; follow with: h3 follow {handle.sweep_id}")
    session.emit(submitted_line(handle))
    return EXIT_OK


def _follow_to_end(session: Session, handle: RunHandle | SweepHandle) -> int:
    """Show progress until every run has ended, then the result; leaving early leaves the jobs alone."""
    try:
        from client.show import FollowView  # noqa: PLC0415 - only where runs are followed

        _tell_notes(session, handle)
        statuses: dict[str, RunStatus] = {}
        with FollowView(session.console, handle.runs) as view:
            for status in session.client.follow(handle):
                statuses[status.run_id] = status
                view.update(status)
        return report(session, handle, statuses)
    except KeyboardInterrupt:
        name = handle.sweep_id or handle.runs[0].run_id
        say(f"interrupted; the jobs go on. See them again with: h3 follow {name}")
        return EXIT_INTERRUPTED


def _tell_notes(session: Session, handle: RunHandle | SweepHandle) -> None:
    for note in handle.notes:
        session.note(note)


def _with_frames(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with `seconds` turned into a length on the frame grid."""
    job = dict(fields)
    seconds = job.pop("seconds", None)
    if seconds is None:
        return job
    if "frames" in job:
        raise SweepInputError("--frames and --seconds say the same; give one of them")
    if not (math.isfinite(seconds) and 0 < seconds <= limits.FRAMES_MAX / FPS):
        raise SweepInputError(
            f"--seconds {seconds}: a film lasts up to {limits.FRAMES_MAX / FPS:.2f} seconds"
        )
    return {**job, "frames": frames_for(seconds)}
