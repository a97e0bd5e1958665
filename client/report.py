"""The last word of a command that submits or follows: one JSON line for programs, a table for people.

The line has the same fields for one run and for a sweep; a run has an entry in `runs` and leaves out what it
does not have.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from client.errors import DamagedArtifactError
from client.handle import Outcome, RunHandle, RunResult, RunStatus, SweepHandle
from client.heartbeat import Heartbeat
from client.receipts import receipt_entries
from client.session import Session
from client.terminal import say
from queue_schemas.errors import EXIT_INTERRUPTED, EXIT_NO, EXIT_OK
from queue_schemas.events import JobStatus


def follow_to_end(session: Session, handle: RunHandle | SweepHandle) -> tuple[int, dict[str, Any] | None]:
    """Show progress until every run has ended, then the result; return the code and the line for programs.

    Leaving early leaves the jobs alone: code 130, no line.
    """
    began = time.monotonic()
    try:
        from client.show import FollowView  # noqa: PLC0415 - only where runs are followed

        tell_notes(session, handle)
        statuses: dict[str, RunStatus] = {}
        heartbeat = Heartbeat(handle.runs, say=session.note)
        pause = time.sleep if session.human else heartbeat.pause
        with FollowView(session.console, handle.runs) as view:
            for status in session.client.follow(handle, pause=pause):
                statuses[status.run_id] = status
                heartbeat.update(status)
                view.update(status)
        return report(session, handle, statuses=statuses, seconds=time.monotonic() - began)
    except KeyboardInterrupt:
        name = handle.sweep_id or handle.runs[0].run_id
        say(f"interrupted; the jobs go on. See them again with: {session.hint(f'follow {name}')}")
        return EXIT_INTERRUPTED, None


def tell_notes(session: Session, handle: RunHandle | SweepHandle) -> None:
    for note in handle.notes:
        session.note(note)


def report(
    session: Session,
    handle: RunHandle | SweepHandle,
    *,
    statuses: Mapping[str, RunStatus],
    seconds: float,
) -> tuple[int, dict[str, Any]]:
    """Show how every run of a handle ended; return 1 unless all succeeded, and the line for programs."""
    from client.show import print_results  # noqa: PLC0415 - only for people

    results = read_results(session, handle.runs)
    print_results(session.console, handle.runs, statuses=statuses, results=results)
    line = {**_heading(handle), **ended_line(handle, statuses=statuses, results=results, seconds=seconds)}
    session.emit(line)
    succeeded = all(statuses[run.run_id].status is JobStatus.SUCCEEDED for run in handle.runs)
    return EXIT_OK if succeeded else EXIT_NO, line


def read_results(session: Session, runs: Iterable[RunHandle]) -> dict[str, RunResult]:
    """Return what each run left behind by run id; a damaged artifact costs a note, not the report."""
    results = {}
    for run in runs:
        try:
            result = session.client.result(run)
        except DamagedArtifactError as error:
            session.note(str(error))
            continue
        if result is not None:
            results[run.run_id] = result
    return results


def submitted_line(handle: RunHandle | SweepHandle) -> dict[str, Any]:
    """Return the line of a submit that is not followed."""
    counts = Counter(str(run.outcome) for run in handle.runs)
    runs = [run_line(run) for run in handle.runs]
    return {**_heading(handle), **counts, "notes": list(handle.notes), "runs": runs}


def ended_line(
    handle: RunHandle | SweepHandle,
    *,
    statuses: Mapping[str, RunStatus],
    results: Mapping[str, RunResult],
    seconds: float,
) -> dict[str, Any]:
    """Return counts per end, how many were joined, how long it took, and one entry per run."""
    counts = Counter(statuses[run.run_id].status for run in handle.runs)
    ends = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)
    return {
        **{str(end): counts[end] for end in ends},
        "joined": sum(run.outcome is Outcome.JOINED for run in handle.runs),
        "seconds": round(seconds, 3),
        "notes": list(handle.notes),
        "runs": [
            run_line(run, status=statuses[run.run_id], result=results.get(run.run_id)) for run in handle.runs
        ],
    }


def run_line(
    run: RunHandle, *, status: RunStatus | None = None, result: RunResult | None = None
) -> dict[str, Any]:
    """Return one run's entry."""
    record = result.record if result else None
    progress = status.progress if status else None
    entry = {
        "run_id": run.run_id,
        "label": run.label or None,
        "generation": run.generation,
        "outcome": run.outcome,
        "seed": run.job.seed if run.job else None,
        "checkpoint": run.job.checkpoint if run.job else None,
        "status": status.status if status else None,
        "stage": progress.stage if progress else None,
        "step": progress.step if progress else None,
        "steps": progress.steps if progress else None,
        "seconds": record.seconds.total if record else None,
        "references": receipt_entries(result.manifest.references) or None if result else None,
        "video": result.video if result else None,
        "benchmark": result.benchmark if result else None,
        "log": result.log if result else None,
        "note": status.note if status else None,
        "error": status.error.model_dump(mode="json") if status and status.error else None,
    }
    return {name: value for name, value in entry.items() if value is not None}


def count_outcomes(handle: RunHandle | SweepHandle) -> str:
    """Return `3 queued, 1 done`, for people."""
    counts = Counter(str(run.outcome) for run in handle.runs)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items())


def _heading(handle: RunHandle | SweepHandle) -> dict[str, Any]:
    single = {"run_id": handle.runs[0].run_id} if len(handle.runs) == 1 else {}
    return {"sweep": handle.sweep_id, "sweep_id": handle.sweep_id, **single}
