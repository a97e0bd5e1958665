"""`h3 submit` and `h3 sweep`: from a command line or a sweep file to runs in the queue, and to their end."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.cli_app import app
from client.command_fields import job_fields, with_lists
from client.errors import SweepInputError
from client.handle import RunHandle, SweepHandle
from client.report import count_outcomes, follow_to_end, submitted_line, tell_notes
from client.session import Session, command
from client.sweep_files import SweepPlan, read_sweep_file
from client.sweeps import expand, parse_seeds, read_prompts
from queue_schemas.errors import EXIT_OK, EXIT_RUNTIME, InvalidRequestError
from queue_schemas.runs import Priority

if TYPE_CHECKING:  # the help of a command needs no queue
    from client.submission import HowOptions

Follow = Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for the result, with progress.")]
OnDone = Annotated[
    str | None,
    typer.Option(
        "--on-done",
        metavar="CMD",
        help="Shell command to run when all have ended; it gets the last JSON line on its standard input,"
        " and SWEEP_ID, SWEEP_SUCCEEDED, SWEEP_FAILED and SWEEP_CANCELLED.",
    ),
]


@command(
    app, example="h3 submit 'a red fox in snow' --seconds 5 --seed 7", job_options=True, how_options=True
)
def submit(
    session: Session,
    fields: Mapping[str, Any],
    *,
    how: Mapping[str, Any],
    prompt: Annotated[str, typer.Argument(help="What the film shows and sounds like.")],
    follow: Follow = True,
) -> int:
    r"""Queue one generation and, unless told otherwise, follow it to its files.

    Files named by --reference, --first-frame and --last-frame are checked, then uploaded. A comma that
    belongs to a name and stands before an option's name is written with a backslash: a\,size=b.png.
    """
    handle = session.client.submit({**job_fields(fields), "prompt": prompt}, **_how(how))
    return _after_submit(session, handle, follow=follow)


@command(
    app, example="h3 sweep --prompts prompts.txt --seeds 4 --seconds 5", job_options=True, how_options=True
)
def sweep(
    session: Session,
    fields: Mapping[str, Any],
    *,
    how: Mapping[str, Any],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="A sweep file: YAML or JSON with prompts, seeds, axes; its fields: docs/sweeps.md.",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="One prompt per line; # starts a comment."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="N|S,S,...",
            help="How many to draw, others each time (4; one when left out), or the seeds themselves (1,2,3;"
            " a single one as 51,).",
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="SWEEP", help="Queue what of that sweep has not ended, from any machine."
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: also what failed or was cancelled.")
    ] = False,
    follow: Follow = True,
    on_done: OnDone = None,
) -> int:
    """Queue every prompt with every seed (or a sweep file, or the rest of a sweep) and follow them all.

    Drawn seeds are the same for every prompt. With --seed they are that seed and others that follow from it.
    A count of seeds in a sweep file draws nothing: the same file always gives the same runs.
    """
    if on_done is not None and not follow:
        raise SweepInputError("--on-done needs --follow: nobody would see the end")
    if sum(source is not None for source in (file, prompts, resume)) != 1:
        raise SweepInputError("name one of: a sweep FILE, --prompts FILE, --resume SWEEP")
    if retry_failed and resume is None:
        raise SweepInputError("--retry-failed goes with --resume SWEEP")
    if resume is not None:
        if fields or seeds is not None or any(how[name] for name in how if name != "require_node"):
            raise SweepInputError("--resume takes everything from the sweep; leave the other options out")
        handle = session.client.resume(
            resume, retry_failed=retry_failed, require_node=bool(how["require_node"])
        )
        counted = f"sweep {handle.sweep_id}: {count_outcomes(handle)}"
    else:
        if file is not None:
            if seeds is not None:
                raise SweepInputError("--seeds goes with --prompts; a sweep file has its own seeds")
            plan = read_sweep_file(file, fields=with_lists(fields))
        else:
            assert prompts is not None
            plan = _plan_of_prompts(prompts, "1" if seeds is None else seeds, fields=fields)
        with _naming(prompts if file is None else file):
            handle = session.client.submit_named(plan.runs, **_how(how, plan=plan))
        counted = plan.counted
    session.note(counted)
    return _after_submit(session, handle, follow=follow, on_done=on_done)


@contextmanager
def _naming(file: Path | None) -> Iterator[None]:
    """Name the file in whose jobs something is refused."""
    try:
        yield
    except InvalidRequestError as error:
        raise SweepInputError(f"{file}: {error}") from None


def _plan_of_prompts(file: Path, seeds: str, *, fields: Mapping[str, Any]) -> SweepPlan:
    base = job_fields(fields)
    chosen = parse_seeds(seeds, base_seed=base.pop("seed", None))
    prompts = read_prompts(file)
    runs = expand(prompts, seeds=chosen, fields=base)
    kind = "" if "," in seeds else "drawn "
    counted = (
        f"{_number(len(runs), 'run')}: {_number(len(prompts), 'prompt')} x"
        f" {_number(len(chosen), f'{kind}seed')}"
    )
    return SweepPlan(runs=runs, counted=counted, labels={})


def _how(how: Mapping[str, Any], *, plan: SweepPlan | None = None) -> "HowOptions":
    """Return what the flags ask for; a flag wins over the sweep file."""
    asked: HowOptions = {
        "priority": how["priority"] or Priority.NORMAL,
        "node": how["node"],
        "force": bool(how["force"]),
        "labels": _labels(how["label"]),
        "require_node": bool(how["require_node"]),
        "fetch": not how["no_fetch"],
    }
    if plan is not None:
        asked["node"] = asked["node"] or plan.node
        asked["force"] = asked["force"] or plan.force
        asked["labels"] = {**plan.labels, **asked["labels"]}
        asked["priority"] = how["priority"] or plan.priority or Priority.NORMAL
    return asked


def _labels(given: list[str] | None) -> dict[str, str]:
    labels = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise SweepInputError(f"--label {text!r}: write NAME=TEXT")
        labels[name] = value
    return labels


def _after_submit(
    session: Session, handle: RunHandle | SweepHandle, *, follow: bool, on_done: str | None = None
) -> int:
    if not follow:
        tell_notes(session, handle)
        job = handle.runs[0].job
        seed = f", seed {job.seed}" if len(handle.runs) == 1 and job is not None else ""
        again = session.hint(f"follow {handle.sweep_id}")
        session.console.print(f"{count_outcomes(handle)}{seed}; follow with: {again}", soft_wrap=True)
        session.emit(submitted_line(handle))
        return EXIT_OK
    code, line = follow_to_end(session, handle)
    if on_done is None or line is None:
        return code
    ended = _run_on_done(session, on_done, line)
    return code or ended


def _run_on_done(session: Session, shell_command: str, line: Mapping[str, Any]) -> int:
    """Run the command; its output goes to standard error, where it mixes with nothing a program reads."""
    told = {f"SWEEP_{name.upper()}": str(line[name]) for name in ("succeeded", "failed", "cancelled")}
    done = subprocess.run(
        shell_command,
        shell=True,  # the user's own words, as they would type them
        input=json.dumps(line, separators=(",", ":")).encode() + b"\n",
        stdout=2,
        env={**os.environ, "SWEEP_ID": str(line["sweep"]), **told},
        check=False,
    )
    if done.returncode:
        session.note(f"the --on-done command ended with code {done.returncode}")
    return EXIT_RUNTIME if done.returncode else EXIT_OK


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
