"""Where a film goes: every name that cannot be written is refused before anything is generated."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_server import served
from fake_pipeline import FakePipeline

from worker.doors import Doors
from worker.engine import Engine
from worker.film_path import film_path
from worker.service import EngineSlot

ATTEMPT = f"runs/{'0' * 32}-r2/1/attempts/1/video.mp4"
MakeFields = Callable[..., dict[str, Any]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The output root of the fixture `engine`, with things in the way."""
    root = tmp_path / "engine"
    (root / "folder.mp4").mkdir(parents=True)
    (root / "real").mkdir()
    (root / "file").write_text("")
    (root / "loop").symlink_to(root / "loop")
    (root / "dangling").symlink_to(root / "nothing")
    (root / "out").symlink_to(tmp_path)
    (root / "inside").symlink_to(root / "real")
    (root / "old.mp4").symlink_to(tmp_path / "elsewhere.mp4")
    return root


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("x" * 120 + "ü" * 70 + ".mp4", "255 bytes"),
        ("狐" * 90 + "/a.mp4", "255 bytes"),
        ("loop/a.mp4", "'loop' is no folder"),
        ("loop/b/a.mp4", "'loop' is no folder"),
        ("file/a.mp4", "'file' is no folder"),
        ("file/b/c/a.mp4", "'file' is no folder"),
        ("dangling/a.mp4", "'dangling' is no folder"),
        ("out/a.mp4", "below the output root"),
        ("folder.mp4", "is a folder"),
        ("store.json/x.mp4", "'store.json' is kept for the engine's own files"),
        ("engine-n-8033.log/x.mp4", "is kept for"),
        ("engine-n-8033.log.1/x.mp4", "is kept for"),
        ("spool/x.mp4", "is kept for"),
        ("./spool/x.mp4", "is kept for"),
        ("runs/x/video.mp4", "is kept for"),
        (f"runs/{'0' * 32}/1/attempts/1/x.mp4", "is kept for"),
        (".film-0123456789abcdef.part/x.mp4", "is kept for"),
    ],
)
def test_an_output_that_cannot_be_written_is_422_before_anything_is_made(
    *, engine: Engine, pipeline: FakePipeline, make_fields: MakeFields, root: Path, output: str, said: str
) -> None:
    with served(EngineSlot(engine), Doors()) as url:
        answers = [
            httpx.post(f"{url}/generate", json=make_fields(output=output, dry_run=dry), trust_env=False)
            for dry in (True, False)
        ]

    assert [answer.status_code for answer in answers] == [422, 422]
    error = answers[1].json()["error"]
    assert (error["code"], error["retryable"]) == ("invalid_request", False)
    assert said in error["message"]
    assert pipeline.steps_run == 0
    assert list((root / "real").iterdir()) == []


def test_a_path_that_is_too_long_as_a_whole_is_refused(tmp_path: Path) -> None:
    missing = os.pathconf("/", "PC_PATH_MAX") - 300 - len(str(tmp_path))
    root = tmp_path.joinpath(*["d" * 200] * (missing // 201), "d" * (missing % 201))

    assert film_path(root, "a.mp4") == root / "a.mp4"
    with pytest.raises(ValueError, match="too long a path"):
        film_path(root, "/".join(["e" * 49] * 4) + ".mp4")


def test_links_inside_the_root_and_old_films_are_no_obstacle(root: Path) -> None:
    for output in (
        "inside/a.mp4",
        "inside/new/a.mp4",
        "new/spool/a.mp4",
        ATTEMPT,
        "spool.mp4",
        "old.mp4",
        "a.mp4",
    ):
        assert film_path(root, output) == root / output
