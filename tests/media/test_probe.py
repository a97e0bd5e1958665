"""Reading a film back, and refusing what is none."""

from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest

from media.errors import FilmUnreadableError
from media.probe import probe, probe_with_tags


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(FilmUnreadableError, match=r"none\.mp4 cannot be read as a film: .*No such file"):
        probe(tmp_path / "none.mp4")


def test_a_file_that_is_no_film_is_said(tmp_path: Path) -> None:
    path = tmp_path / "notes.mp4"
    path.write_text("not a film at all\n" * 100)

    with pytest.raises(FilmUnreadableError, match="Invalid data"):
        probe(path)
    with pytest.raises(FilmUnreadableError, match="Invalid data"):
        probe_with_tags(path)


@pytest.mark.parametrize("kept", [0.3, 0.66, 0.999])
def test_a_film_that_is_cut_off_is_refused(write_film: Callable[..., Path], kept: float) -> None:
    path = write_film(39)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])

    with pytest.raises(FilmUnreadableError, match=r"it is cut off|Invalid data"):
        probe(path)


def test_a_file_without_sound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mute.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for _ in range(5):
            picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))

    with pytest.raises(FilmUnreadableError, match="no sound"):
        probe(path)
