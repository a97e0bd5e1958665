"""The log of one attempt: what was said meanwhile, bounded."""

import logging
from collections.abc import Iterator

import pytest

from queue_schemas import limits
from worker.attempt_log import AttemptLog

log = logging.getLogger("worker.test")


@pytest.fixture
def attempt_log(caplog: pytest.LogCaptureFixture) -> Iterator[AttemptLog]:
    caplog.set_level(logging.INFO)
    log.warning("before")
    attempt_log = AttemptLog()
    yield attempt_log
    attempt_log.close()
    log.warning("after")


def test_it_holds_what_was_logged_meanwhile_and_what_others_said(attempt_log: AttemptLog) -> None:
    log.info("job %s: starting", "ab")
    log.error("job ab: two\nlines \x1b[31m and an escape")
    attempt_log.add("Fatal Python error\n  at a line", prefix="engine| ")

    lines = attempt_log.text().splitlines()

    assert lines[0].endswith(" INFO worker.test: job ab: starting")
    assert lines[1].endswith(" ERROR worker.test: job ab: two")
    assert lines[2:] == [
        r"lines \x1b[31m and an escape",
        "engine| Fatal Python error",
        "engine|   at a line",
    ]


def test_the_newest_lines_are_kept_whole(attempt_log: AttemptLog) -> None:
    for number in range(500):
        log.info("%d %s", number, "x" * 2_000)

    text, tail = attempt_log.text(), attempt_log.tail()

    assert 0.9 * limits.LOG_BYTES < len(text.encode()) <= limits.LOG_BYTES
    assert " INFO worker.test: 499 x" in text.splitlines()[-1]
    assert all(" INFO worker.test: " in line and len(line) < 1_100 for line in text.splitlines())
    assert len(tail) <= limits.LOG_TAIL_CHARACTERS
    assert text.endswith(tail)
