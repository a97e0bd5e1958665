"""How long a film will take, by the records of films that the fleet has made.

A step's time follows the work of its rows (`media.step_cost`), the rest (encoding, decoding, writing) the
pixels of the film. Medians per device, the films of the job's own checkpoint alone where there are any.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from media.step_cost import step_work
from queue_schemas.benchmark import BenchmarkRecord
from queue_schemas.checks import CheckReport, ExpectedSeconds
from queue_schemas.events import JobStatus

_PER_DEVICE: Final = 200
"""So many records of one device are enough; what is over is not read."""


class Records:
    """What a fleet's records say of its devices; made once, asked for every job."""

    def __init__(self, records: Iterable[BenchmarkRecord]) -> None:
        self._by_device: dict[str, list[BenchmarkRecord]] = defaultdict(list)
        for record in records:
            if _tells(record) and record.environment is not None:
                of_device = self._by_device[record.environment.device]
                if len(of_device) < _PER_DEVICE:
                    of_device.append(record)

    def expect(self, report: CheckReport) -> list[ExpectedSeconds]:
        """Return what each device would take for a checked job, fastest first."""
        found = [self._of_device(device, report) for device in self._by_device]
        return sorted((each for each in found if each is not None), key=lambda each: each.total)

    def _of_device(self, device: str, report: CheckReport) -> ExpectedSeconds | None:
        job, known = report.job, self._by_device[device]
        same = [r for r in known if r.request.get("checkpoint") == job["checkpoint"]] or known
        per_work = statistics.median(_step_seconds(record) / step_work(_rows(record)) for record in same)
        per_pixel = statistics.median(_rest_seconds(record) / _pixels(record.request) for record in same)
        step = per_work * step_work(report.tokens.total)
        return ExpectedSeconds(
            device=device,
            step=round(step, 4),
            total=round(step * job["steps"] + per_pixel * _pixels(job), 3),
            records=len(same),
        )


def _tells(record: BenchmarkRecord) -> bool:
    is_whole = record.status is JobStatus.SUCCEEDED and record.tokens is not None
    return is_whole and bool(record.seconds.denoise_steps) and record.seconds.total is not None


def _rows(record: BenchmarkRecord) -> int:
    tokens = record.tokens
    assert tokens is not None
    return tokens.text + tokens.video + tokens.audio + tokens.conditions


def _step_seconds(record: BenchmarkRecord) -> float:
    return statistics.median(record.seconds.denoise_steps)


def _rest_seconds(record: BenchmarkRecord) -> float:
    assert record.seconds.total is not None
    return max(0.0, record.seconds.total - sum(record.seconds.denoise_steps))


def _pixels(job: Mapping[str, Any]) -> int:
    return int(job["width"] * job["height"] * job["frames"])
