"""What a person sees while runs go on."""

import io

from rich.console import Console

from client.handle import RunHandle, RunStatus
from client.show import FollowView, state_text
from client.standing import NODE_GONE
from queue_schemas.events import JobStatus, ProgressEvent, Stage


def test_the_time_left_of_a_sweep_goes_by_the_runs_that_have_ended() -> None:
    now, sink = [100.0], io.StringIO()
    runs = [RunHandle(run_id=f"{n}" * 32, generation=1, sweep_id="s") for n in range(4)]

    console = Console(file=sink, force_terminal=True, color_system=None, width=120)
    with FollowView(console, runs, clock=lambda: now[0]) as view:
        now[0] += 30
        view.update(RunStatus(run_id=runs[0].run_id, generation=1, status=JobStatus.FAILED))

    assert "1/4, 1 failed, 1:30 left" in sink.getvalue()


def test_a_step_tells_the_time_left_unless_its_node_is_gone() -> None:
    event = ProgressEvent(stage=Stage.DENOISE, step=3, steps=20, seconds=2.5)
    running = RunStatus(run_id="a", generation=1, status=JobStatus.RUNNING, progress=event)
    gone = RunStatus(run_id="a", generation=1, status=JobStatus.RUNNING, progress=event, note=NODE_GONE)

    assert state_text(running) == "denoise 3/20, 0:42 left"
    assert state_text(gone) == f"denoise 3/20: {NODE_GONE}"
