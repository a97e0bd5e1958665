"""What a person sees on a terminal: bars while runs go on, a table when they have ended.

Text that came from prompts, errors or file names is never read as markup, nor does it steer the terminal.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from client.handle import RunHandle, RunResult, RunStatus
from client.receipts import receipt_text
from queue_schemas.events import JobStatus, ProgressEvent
from queue_schemas.text import printable

_ALL_BARS = 12
"""Up to so many runs each keep a bar from the start; of more, only those that run have one."""


class FollowView:
    """One bar per run (stage, step, time left) and, for a sweep, one over all. A context manager."""

    def __init__(
        self, console: Console, runs: Sequence[RunHandle], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
            console=console,
        )
        self._names = {run.run_id: short_name(run) for run in runs}
        self._tasks: dict[str, TaskID] = {}
        self._ended: dict[str, JobStatus] = {}
        self._overall: TaskID | None = None
        self._now, self._began = clock, clock()
        if len(runs) > 1:
            self._overall = self._progress.add_task("all runs", total=len(runs), state=f"0/{len(runs)}")
        if len(runs) <= _ALL_BARS:
            for run in runs:
                self._task(run.run_id)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def update(self, status: RunStatus) -> None:
        if status.status.terminal:
            self._end(status)
        elif status.status is JobStatus.RUNNING or status.run_id in self._tasks:
            step, steps = _steps(status.progress)
            self._progress.update(
                self._task(status.run_id), completed=step, total=steps, state=state_text(status)
            )

    def _end(self, status: RunStatus) -> None:
        self._ended[status.run_id] = status.status
        if len(self._names) > _ALL_BARS:
            task = self._tasks.pop(status.run_id, None)
            if task is not None:
                self._progress.remove_task(task)
        else:
            task = self._task(status.run_id)
            self._progress.update(task, completed=1, total=1, state=state_text(status))
        if self._overall is not None:
            self._progress.update(self._overall, completed=len(self._ended), state=self._overall_text())

    def _overall_text(self) -> str:
        """Return `12/48, 1 failed, 0:42 left`; the time left goes by the runs that have ended so far."""
        ended, total = len(self._ended), len(self._names)
        failed = sum(end is not JobStatus.SUCCEEDED for end in self._ended.values())
        left = (self._now() - self._began) / ended * (total - ended)
        parts = [f"{ended}/{total}"]
        parts += [f"{failed} failed"] if failed else []
        parts += [f"{_clock(left)} left"] if left >= 1 else []
        return ", ".join(parts)

    def _task(self, run_id: str) -> TaskID:
        if run_id not in self._tasks:
            name = self._names.get(run_id, run_id[:12])
            self._tasks[run_id] = self._progress.add_task(name, total=1, completed=0, state="waiting")
        return self._tasks[run_id]


class PlainView:
    """The same as lines, one per stage of a run: for a log file or a pipe."""

    def __init__(self, console: Console, runs: Sequence[RunHandle]) -> None:
        self._console, self._names = console, {run.run_id: short_name(run) for run in runs}
        self._said: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, status: RunStatus) -> None:
        stage = status.progress.stage if status.progress else ""
        now = f"{status.status} {stage}"
        if self._said.get(status.run_id) != now:
            self._said[status.run_id] = now
            self._console.print(f"{self._names[status.run_id]}: {state_text(status)}")


def short_name(run: RunHandle) -> str:
    """Return the run's label, else the start of its id."""
    return printable(run.label) or run.run_id[:12]


def state_text(status: RunStatus) -> str:
    """Return where a run stands in a few words: `denoise 3/20, 0:42 left`."""
    if status.error is not None:
        return printable(f"{status.status}: {status.error.message}")
    progress = status.progress
    if status.status is not JobStatus.RUNNING or progress is None:
        return f"{status.status}: {status.note}" if status.note else str(status.status)
    stage = progress.stage.replace("_", " ")
    if progress.steps:
        stage = f"{stage} {progress.step}/{progress.steps}"
    if status.note:
        return f"{stage}: {status.note}"
    left = (progress.steps - progress.step) * progress.seconds if progress.steps else 0
    return f"{stage}, {_clock(left)} left" if left > 0 else stage


def print_statuses(
    console: Console,
    runs: Sequence[RunHandle],
    *,
    statuses: Mapping[str, RunStatus],
    results: Mapping[str, RunResult],
) -> None:
    """Print one row per run with its whole id, and below them what is odd, each on a line of its own."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("run", no_wrap=True, min_width=max((len(run.run_id) for run in runs), default=0))
    table.add_column("gen", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("what", no_wrap=True, overflow="ellipsis")
    for run in runs:
        status = statuses[run.run_id]
        is_odd = status.error is not None or status.note is not None
        state = str(status.status) if is_odd else state_text(status)
        table.add_row(run.run_id, str(run.generation), state, Text(printable(run.label)))
    console.print(table)
    _print_faults(console, runs, statuses=statuses, results=results)


def print_results(
    console: Console,
    runs: Sequence[RunHandle],
    *,
    statuses: Mapping[str, RunStatus],
    results: Mapping[str, RunResult],
) -> None:
    """Print one row per run, then the films, then what went wrong, each on one line whatever the width."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("what", no_wrap=True, overflow="ellipsis")
    table.add_column("state", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("run", no_wrap=True)
    for run in runs:
        status, result = statuses[run.run_id], results.get(run.run_id)
        record = result.record if result else None
        total = record.seconds.total if record else None
        seconds = "" if total is None else f"{total:.1f}"
        table.add_row(Text(short_name(run)), str(status.status), seconds, run.run_id[:12])
    console.print(table)
    _print_faults(console, runs, statuses=statuses, results=results)
    for run in runs:
        result = results.get(run.run_id)
        if result is not None and result.manifest.references:
            _print_lines(console, [f"{short_name(run)}: {receipt_text(result.manifest.references)}"])
    _print_lines(console, (result.video for run in runs if (result := results.get(run.run_id))))


def _print_faults(
    console: Console,
    runs: Sequence[RunHandle],
    *,
    statuses: Mapping[str, RunStatus],
    results: Mapping[str, RunResult],
) -> None:
    """Print what is odd about each run, and where its log lies."""
    for run in runs:
        status, result = statuses[run.run_id], results.get(run.run_id)
        if status.error is not None or status.note is not None:
            log = f"    its log: {result.log}" if result is not None and result.log else None
            _print_lines(console, (f"{short_name(run)}: {state_text(status)}", log))


def _print_lines(console: Console, lines: Iterable[str | None]) -> None:
    """Print whole lines, which a terminal may wrap and a person can still copy; none is an empty one."""
    for line in lines:
        if line:
            console.print(Text(line), soft_wrap=True)


def _steps(progress: ProgressEvent | None) -> tuple[int, int]:
    return (progress.step, progress.steps) if progress and progress.steps else (0, 1)


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
        if whole >= 3600
        else (f"{whole // 60}:{whole % 60:02}")
    )
