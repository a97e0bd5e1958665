"""A preview's media and the place of its film, looked at before any model is."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from media.errors import ReferenceUnreadableError
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


@pytest.mark.parametrize(
    ("media", "says"),
    [
        ({"first_frame": "gone.png"}, r"first_frame \(gone.png\): there is no such file"),
        ({"first_frame": "~no-such-user/" + "x" * 300}, "there is no such file"),
        (
            {"references": [{"kind": "image", "source": "{tmp}/text"}]},
            r"references\[0\] .* but text; give a PNG",
        ),
        ({"last_frame": "https://127.0.0.1/fox.png"}, "leads to an address that is not public"),
    ],
)
def test_media_that_cannot_be_used_are_refused_before_anything_is_loaded(
    tmp_path: Path, media: dict[str, Any], says: str
) -> None:
    (tmp_path / "text").write_text("no picture")
    fields = json.loads(json.dumps(media).replace("{tmp}", str(tmp_path)))

    with pytest.raises(ReferenceUnreadableError, match=says) as caught:
        preview_film({"prompt": "x", **fields}, {}, output=tmp_path / "fox.mp4", tell=no_model)

    assert error_code(caught.value) is ErrorCode.REFERENCE_UNREADABLE
    assert not (tmp_path / "fox.mp4").exists()
