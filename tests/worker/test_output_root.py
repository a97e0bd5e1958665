"""The engine's output root: refused before anything is loaded, and rid of what killed attempts left."""

import os
import time
from pathlib import Path

import pytest
from somebody import as_somebody, open_folder

from worker.output_root import STALE_SECONDS, OutputRootError, check_output_root, remove_leftovers

RUN = "0123456789abcdef0123456789abcdef"


def test_a_root_that_can_be_written_is_made_and_left_empty(tmp_path: Path) -> None:
    check_output_root(tmp_path / "outputs" / "engine")

    assert remove_leftovers(tmp_path / "outputs" / "engine") == 0
    assert list((tmp_path / "outputs" / "engine").iterdir()) == []


def test_a_root_that_is_no_folder_or_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.json").touch()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "spool").symlink_to(tmp_path / "nothing")

    for name, says in (
        ("file", "no folder"),
        ("file/below", "no folder"),
        ("loop", "no folder"),
        ("store", "it is a store"),
        ("taken", "spool in it is no folder"),
    ):
        with pytest.raises(OutputRootError, match=f"{name}: .*{says}; name another folder by H3_OUTPUT_DIR"):
            check_output_root(tmp_path / name)


def test_a_folder_of_the_name_of_a_stores_identity_makes_no_store(tmp_path: Path) -> None:
    (tmp_path / "store.json").mkdir()

    check_output_root(tmp_path)


def test_a_root_that_this_user_may_not_write_is_refused() -> None:
    with open_folder() as folder:
        folder.chmod(0o555)
        with as_somebody(), pytest.raises(OutputRootError, match="permission denied; name another folder"):
            check_output_root(folder)


def test_only_what_killed_attempts_left_a_day_ago_is_removed(tmp_path: Path) -> None:
    attempt = f"runs/{RUN}/1/attempts"
    gone = [
        f"{attempt}/1/video.mp4",
        f"{attempt}/2/.film-0123456789abcdef.part",
        f"spool/{RUN}-1/.attempt.json.77.0123456789abcdef.tmp",
        ".film-0123456789abcdef.part",
    ]
    stays = [
        "fox.mp4",
        "runs/fox/video.mp4",
        f"{attempt}/1/notes.txt",
        f"spool/{RUN}-1/video.mp4",
        "films/.film-0123456789abcdef.part",
    ]
    for name in (*gone, *stays):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    fresh = tmp_path / attempt / "3" / "video.mp4"
    now = time.time() + STALE_SECONDS + 1
    fresh.parent.mkdir()
    fresh.touch()
    os.utime(fresh, (now, now))

    assert remove_leftovers(tmp_path, now=now) == len(gone)

    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {*stays, str(fresh.relative_to(tmp_path))}
    assert not (tmp_path / attempt / "2").exists()


def test_no_link_is_followed_out_of_the_root(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    film = elsewhere / RUN / "1" / "attempts" / "1" / "video.mp4"
    film.parent.mkdir(parents=True)
    film.touch()
    root.mkdir()
    (root / "runs").symlink_to(elsewhere)
    (root / "spool").mkdir()
    (root / "spool" / "deeper").symlink_to(elsewhere)

    assert remove_leftovers(root, now=time.time() + 2 * STALE_SECONDS) == 0
    assert film.exists()
