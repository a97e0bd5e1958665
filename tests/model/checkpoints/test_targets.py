"""Which files a path, a folder or a pattern means; where reports are kept."""

import os
from pathlib import Path

import pytest

from model.checkpoints.targets import artifact_folder, expand, write_artifact


def test_arguments_become_files_in_order_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m/b.safetensors", "m/sub/a.safetensors", "m/other.txt", "x[1].safetensors"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()

    found = expand(["m", "m/**/*.safetensors", "x[1].safetensors", "none*", "m/other.txt"])

    assert [str(path) for path in found] == [
        "m/b.safetensors", "m/sub/a.safetensors", "x[1].safetensors", "none*", "m/other.txt",
    ]  # fmt: skip


def test_a_folder_without_a_file_stays_to_be_refused(tmp_path: Path) -> None:
    assert expand([str(tmp_path)]) == [tmp_path]


def test_reports_go_to_the_root_of_a_volume_of_its_own(tmp_path: Path) -> None:
    volume = next(
        (p for p in (Path("/dev/shm"), Path("/tmp")) if p.is_mount() and os.access(p, os.W_OK)), None
    )
    if volume is None:
        pytest.skip("no writable volume beside the system's")

    assert artifact_folder(volume / "ComfyUI/models/a", working=tmp_path) == volume / "artifacts/checkpoints"


def test_reports_of_the_systems_volume_go_below_the_working_folder(tmp_path: Path) -> None:
    assert artifact_folder(Path("/usr/a"), working=tmp_path) == tmp_path / "artifacts/checkpoints"


def test_a_report_is_replaced_at_one_stroke(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"

    write_artifact(folder, "name", "one")
    path = write_artifact(folder, "name", "two")

    assert [p.name for p in folder.iterdir()] == ["name.json"]
    assert path.read_text() == "two"
