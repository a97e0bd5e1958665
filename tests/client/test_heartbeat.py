"""Signs of life of a command whose bars nobody sees."""

from collections.abc import Sequence

import pytest

from client.handle import RunHandle, RunStatus
from client.heartbeat import Heartbeat
from queue_schemas.events import JobStatus, ProgressEvent, Stage


def run(name: str) -> RunHandle:
    return RunHandle(run_id=name, generation=1, sweep_id=None)


def status(name: str, state: JobStatus, progress: ProgressEvent | None = None) -> RunStatus:
    return RunStatus(run_id=name, generation=1, status=state, progress=progress)


STEP = ProgressEvent(stage=Stage.DENOISE, step=3, steps=20, seconds=2.0)


@pytest.mark.parametrize(
    ("names", "statuses", "said"),
    [
        (["a"], [], "waiting"),
        (["a"], [status("a", JobStatus.RUNNING, STEP)], "denoise 3/20, 0:34 left"),
        (
            ["a", "b", "c"],
            [status("a", JobStatus.SUCCEEDED), status("b", JobStatus.RUNNING, STEP)],
            "1 of 3 ended, 1 running",
        ),
    ],
)
def test_where_the_runs_stand_is_said_every_half_minute(
    names: Sequence[str], statuses: Sequence[RunStatus], said: str
) -> None:
    told: list[str] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    heartbeat = Heartbeat([run(name) for name in names], say=told.append, clock=lambda: now[0], sleep=sleep)
    for each in statuses:
        heartbeat.update(each)
    for _ in range(29):
        heartbeat.pause(1.0)
    early = list(told)
    for _ in range(32):
        heartbeat.pause(1.0)

    assert early == []
    assert told == [said, said]
