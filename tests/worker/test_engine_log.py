"""The engine's log: what it said during a job, read from outside, also when the engine died of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from queue_schemas import limits
from worker.engine_log import EngineLog, engine_log_size, engine_said
from worker.output_root import OutputRootError

DYING_ENGINE = """
import logging, os, sys
import numpy  # so that there are extension modules to name
from pathlib import Path
from worker.engine_log import EngineLog
logging.basicConfig(level=logging.INFO, handlers=[EngineLog(Path(sys.argv[1]), node="n-8033")])
for number in range(int(sys.argv[2])):
    logging.getLogger("worker.engine").info("job %d: starting %s", number, "x" * 90)
os.abort()
"""


@pytest.mark.parametrize("jobs", [1, 2_000])
def test_an_engine_that_dies_of_a_job_leaves_its_stack_in_a_bounded_log(tmp_path: Path, jobs: int) -> None:
    (tmp_path / "engine-n-8033.log").write_text("of an earlier engine\n")
    before = engine_log_size(tmp_path, node="n-8033")

    command = [sys.executable, "-c", DYING_ENGINE, str(tmp_path), str(jobs)]
    subprocess.run(command, check=False, capture_output=True)

    said = engine_said(tmp_path, node="n-8033", since=before)
    assert f"INFO worker.engine: job {jobs - 1}: starting xxx" in said
    assert "Fatal Python error: Aborted" in said
    assert "of an earlier engine" not in said
    assert "Extension modules" not in said
    assert len(said) <= 4_000
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2.1 * limits.LOG_BYTES


@pytest.mark.parametrize("name", ["engine-n-8033.log", "engine-n-8033.log.1"])
def test_a_folder_in_place_of_the_log_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()

    with pytest.raises(OutputRootError, match=f"{name} in it is no file, .*; name another folder"):
        EngineLog(tmp_path, node="n-8033")


def test_an_engine_without_a_log_said_nothing(tmp_path: Path) -> None:
    assert engine_log_size(tmp_path, node="n-8033") == 0
    assert engine_said(tmp_path, node="n-8033", since=0) == ""
