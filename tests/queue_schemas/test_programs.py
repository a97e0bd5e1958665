"""How commands are named in hints."""

import sys
from pathlib import Path

import pytest

from queue_schemas.programs import typed


def test_a_command_is_named_as_it_can_be_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", "h3"):
        (folder / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.chdir(tmp_path)

    monkeypatch.setenv("PATH", str(folder))
    assert typed("h3") == "h3"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert typed("h3") == "venv/bin/h3"
    assert typed("h3-worker") == "h3-worker"  # is not there, so no path would be right
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert typed("h3") == str(folder / "h3")
