"""`h3 demo`: a whole fleet on one CPU, from prompts to films with sound and their records, in a folder.

Every field of its four jobs is written out, so their ids never change: run again, it finds them in storage
and starts nothing. Its folder (`demo_folder.py`) is its own. Signals only set a flag that every wait looks
at: no process is started and then missed.
"""

import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from broker.states import RunState
from client.client import H3Client
from client.demo_folder import claimed
from client.demo_node import DemoNode, node_command, started_node
from client.errors import DemoError, DemoFolderError
from client.handle import Outcome, RunHandle, RunResult, SweepHandle
from client.outcomes import latest_manifest, read_result
from client.report import run_line
from client.session import Session
from client.show import FollowView, PlainView, print_results
from client.standing import status_of
from client.sweeps import expand
from client.terminal import PlainConsole, say
from queue_schemas.errors import EXIT_INTERRUPTED, EXIT_NO, EXIT_OK
from queue_schemas.events import JobStatus
from queue_schemas.jobs import build_job
from queue_schemas.results import Manifest
from storage.base import ArtifactStore
from storage.errors import ArtifactMissingError
from storage.local import LocalStore

PROMPTS = (
    "A red fox trots through fresh snow between birches; snow crunches under its paws.",
    "Waves break on a black beach at dusk; wind and gulls over the surf.",
)
SEEDS = (7, 2026)
FIELDS: Mapping[str, Any] = {
    "workflow": "t2va",
    "width": 192,
    "height": 128,
    "frames": 39,
    "steps": 4,
    "conventions": "comfyui",
    "sampler": "euler",
    "schedule": "simple",
    "shift_video": 12.0,
    "shift_audio": 3.0,
    "attention": "auto",
    "vae_dtype": "float32",
    "vae_tile_size": 256,
    "checkpoint": "h3-tiny",
}
_PLAIN_COLUMNS = 160


class _InterruptedError(Exception):
    """Raised when a signal asked the demo to end."""


@dataclass(slots=True)
class _StopFlag:
    """Set by a signal; read by every wait."""

    is_set: bool = False

    def pause(self, seconds: float) -> None:
        """Wait, in slices short enough that a signal is answered at once. Raises _InterruptedError."""
        deadline = time.monotonic() + seconds
        while not self.is_set and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))
        if self.is_set:
            raise _InterruptedError


def run_demo(session: Session, *, folder: Path, fresh: bool, command: Sequence[str] | None = None) -> int:
    """Make what is missing of the demo's four films in `folder`; return the exit code.

    `command` starts another node than the usual one. Raises DemoError, DemoFolderError and what storage and
    queue raise.
    """
    began = time.monotonic()
    own_runs = [build_job(fields).job_id for _, fields in _asked()]
    with _stop_requests() as stop, claimed(folder, fresh=fresh, own_runs=own_runs, own_prompts=PROMPTS):
        store = LocalStore(folder)
        already_done = all(run.outcome is Outcome.DONE for run in _runs(store))
        try:
            if not already_done:
                _make(session, folder=folder, stop=stop, command=command)
        except _InterruptedError:
            say("interrupted; everything that the demo started has ended. Run it again and it goes on")
            return EXIT_INTERRUPTED
        return _conclude(session, folder, already_done=already_done, seconds=time.monotonic() - began)


def _asked() -> list[tuple[str, dict[str, Any]]]:
    named = [(f"prompt {number}", prompt) for number, prompt in enumerate(PROMPTS, start=1)]
    return expand(named, seeds=SEEDS, fields=FIELDS)


def _runs(store: ArtifactStore) -> list[RunHandle]:
    """Return the four runs in order, each at its newest generation, DONE where that has succeeded."""
    runs = []
    for label, fields in _asked():
        job = build_job(fields)
        manifest = latest_manifest(store, job.job_id)
        done = manifest is not None and manifest.status is JobStatus.SUCCEEDED
        runs.append(
            RunHandle(
                run_id=job.job_id,
                generation=manifest.generation if manifest else 1,
                sweep_id=None,
                label=label,
                outcome=Outcome.DONE if done else None,
                job=job,
            )
        )
    return runs


def _make(session: Session, *, folder: Path, stop: _StopFlag, command: Sequence[str] | None) -> None:
    """Start a node, sweep through it what is missing, follow it to its end, stop the node."""
    console = _console(session)
    with tempfile.TemporaryDirectory(prefix="h3-demo-") as scratch:
        chosen = command or node_command(folder, Path(scratch))
        console.print(f"starting a node on this machine's CPU (its log: {folder / 'node.log'})")
        with started_node(chosen, log=folder / "node.log", pause=stop.pause) as node:
            if node.checkpoint != FIELDS["checkpoint"]:
                raise DemoError(f"the node serves {node.checkpoint!r}, not {FIELDS['checkpoint']!r}")
            client = H3Client(redis_url=node.redis_url, storage_url=str(folder))
            handle = client.sweep(PROMPTS, SEEDS, fields=FIELDS)
            _watch(client, handle, console=console, node=node, stop=stop)


def _watch(
    client: H3Client, handle: SweepHandle, *, console: Console, node: DemoNode, stop: _StopFlag
) -> None:
    def pause(seconds: float) -> None:
        node.check_alive()
        stop.pause(seconds)

    view = FollowView if console.is_terminal else PlainView
    with view(console, handle.runs) as shown:
        for status in client.follow(handle, poll_seconds=0.1, pause=pause):
            shown.update(status)


def _conclude(session: Session, folder: Path, *, already_done: bool, seconds: float) -> int:
    """Write summary.json, show the table, print the line; 1 unless all four succeeded."""
    store = LocalStore(folder)
    runs = _runs(store)
    forgotten = RunState(entry_id="", status=None, progress=None)  # its queue has ended with its node
    statuses = {run.run_id: status_of(store, run, state=forgotten) for run in runs}
    results = {
        status.run_id: _result(store, status.manifest, folder=folder)
        for status in statuses.values()
        if status.manifest is not None
    }
    succeeded = sum(status.status is JobStatus.SUCCEEDED for status in statuses.values())
    counts = {"succeeded": succeeded, "failed": len(runs) - succeeded, "seconds": round(seconds, 3)}
    summary = folder / "summary.json"
    if not (already_done and summary.is_file()):
        entries = [
            run_line(replace(run, outcome=None), status=statuses[run.run_id], result=results.get(run.run_id))
            for run in runs
        ]
        text = json.dumps({**counts, "folder": str(folder), "weights": "random", "runs": entries}, indent=2)
        store.put_bytes(summary.name, f"{text}\n".encode())

    console = _console(session)
    print_results(console, runs, statuses=statuses, results=results)
    if already_done:
        console.print(
            f"The work was already done in {folder}; repeat it with: {session.hint('demo --fresh')}"
        )
    elif succeeded < len(runs):
        console.print(f"Not all succeeded; the node's log is {folder / 'node.log'}")
    if not session.quiet:
        videos = [result.video for result in results.values() if result.video]
        records = [result.benchmark for result in results.values() if result.benchmark]
        paths = {"summary": str(summary), "videos": videos, "benchmarks": records}
        session.print_json({**counts, "already_done": already_done, "folder": str(folder), **paths})
    return EXIT_OK if succeeded == len(runs) else EXIT_NO


def _result(store: ArtifactStore, manifest: Manifest, *, folder: Path) -> RunResult:
    """Return what a run left, with paths as the user named the folder. Raises DemoFolderError."""
    for file in manifest.files.values():
        try:
            store.open(file.name).close()
        except ArtifactMissingError:
            lost = f"{folder / file.name} is gone although a manifest names it"
            raise DemoFolderError(f"{lost}; make it again with: h3 demo --fresh") from None
    result = read_result(store, manifest)
    names = {role: str(folder / file.name) for role, file in manifest.files.items()}
    video = names.get("video") if result.video else None
    return replace(result, video=video, benchmark=names.get("benchmark"))


def _console(session: Session) -> Console:
    """For people, also where they read a pipe or a log file: the demo shows how it goes."""
    width = None if sys.stdout.isatty() else _PLAIN_COLUMNS
    return PlainConsole(quiet=session.quiet or session.as_json, width=width)


@contextmanager
def _stop_requests() -> Iterator[_StopFlag]:
    """Turn SIGINT, SIGTERM and SIGHUP into a flag while the block runs."""
    flag = _StopFlag()

    def request(number: int, frame: FrameType | None) -> None:
        flag.is_set = True

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup the terminal may go
        numbers.append(signal.SIGHUP)
    former = {number: signal.signal(number, request) for number in numbers}
    try:
        yield flag
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
