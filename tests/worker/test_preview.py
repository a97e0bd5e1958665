"""The place of a preview's film, looked at before any model is."""

from pathlib import Path
from typing import NoReturn

import pytest

from queue_schemas.errors import ErrorCode
from worker.errors import error_code
from worker.preview import preview_film


def no_model(_: str) -> NoReturn:
    pytest.fail("a model was looked for")


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("/proc/x.mp4", "films cannot be made in /proc: .*; name another file by --output"),
        ("/proc/x/y.mp4", "films cannot be made in /proc/x: "),
        ("file/x.mp4", "a part of this path is no folder"),
        ("dangling/x.mp4", "a part of this path is no folder"),
        ("loop/x.mp4", "a part of this path is no folder"),
        ("folder.mp4", "'folder.mp4' is a folder"),
        ("a:b.mp4", "holds ':', which not every system allows"),
    ],
)
def test_a_film_that_cannot_be_written_is_refused_before_anything_is_loaded(
    tmp_path: Path, output: str, says: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder.mp4").mkdir()

    with pytest.raises(Exception, match=says) as caught:
        preview_film({"prompt": "x"}, {}, output=tmp_path / output, tell=no_model)

    assert error_code(caught.value) is ErrorCode.INVALID_REQUEST
