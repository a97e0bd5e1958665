"""The inspector as a person runs it: without torch, a table or one line of JSON, and exit codes that tell."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from model.checkpoints.descriptions import describe

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "docs" / "schemas" / "inspection-report.schema.json"
WITHOUT_TORCH = """
import runpy, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "safetensors", "transformers", "redis", "boto3"):
            raise ImportError(f"{name} is blocked by this test")
sys.meta_path.insert(0, Blocked())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
TERMINAL = """
import os, pty, sys
os.environ |= {"COLUMNS": "160", "NO_COLOR": "1"}
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
"""


def run(folder: Path, *arguments: object, terminal: bool = False) -> subprocess.CompletedProcess[str]:
    tool = [sys.executable, "-c", WITHOUT_TORCH, str(ROOT / "tools" / "inspect_safetensors.py")]
    command = [*tool, *map(str, arguments)]
    return subprocess.run(
        [sys.executable, "-c", TERMINAL, *command] if terminal else command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    [line] = done.stdout.splitlines()
    report: dict[str, Any] = json.loads(line)
    jsonschema.validate(report, json.loads(SCHEMA.read_text()))
    return report


def write(path: Path, variant: str = "dit_pruned_nvfp4", *, tail: bytes = b"") -> Path:
    """A tiny file of ones with its real header and markers."""
    description = describe(variant, "tiny")
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(t.marker or b"\1" * (t.end - t.begin) for t in description.tensors)
    path.write_bytes(description.header_bytes() + content + tail)
    return path


def test_a_folder_a_pattern_and_a_file_give_one_line_that_the_schema_describes(tmp_path: Path) -> None:
    write(tmp_path / "models/vae/a.safetensors", "vae_video_fp16")
    write(tmp_path / "models/b.safetensors")
    write(tmp_path / "c1.safetensors", "lora_turbo_rank128")

    done = run(tmp_path, "models", "c?.safetensors", "models/b.safetensors")

    assert (done.returncode, done.stderr) == (0, "")
    found = [(item["path"], item["family"]) for item in report_of(done)["files"]]
    assert found == [
        ("models/b.safetensors", "transformer"),
        ("models/vae/a.safetensors", "video_vae"),
        ("c1.safetensors", "lora"),
    ]


def test_a_terminal_gets_tables(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", tail=b"x" * 65)

    done = run(tmp_path, "a.safetensors", terminal=True)

    assert done.returncode == 0
    for text in ("transformer, dit_pruned_nvfp4 at other sizes", "packed weights", "one E4M3 per 16 columns"):
        assert text in done.stdout
    assert "65 bytes behind the last tensor" in done.stdout


def test_names_in_a_file_do_not_steer_the_terminal(tmp_path: Path) -> None:
    text = json.dumps({"__metadata__": {"\x1b[2J": "[red]\x1b[31m"}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)

    done = run(tmp_path, "a.safetensors", terminal=True)

    assert "\x1b[2J" not in done.stdout
    assert "\x1b[31m" not in done.stdout
    assert r"[red]\x1b[31m" in done.stdout


def test_what_is_no_checkpoint_is_refused_with_the_rest_still_told(tmp_path: Path) -> None:
    write(tmp_path / "good.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "link.safetensors").symlink_to("gone")
    (tmp_path / "lfs.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "page.safetensors").write_bytes(b"<!DOCTYPE html><html></html>")
    (tmp_path / "deep.safetensors").write_bytes(
        (2_000_006).to_bytes(8, "little") + b'{"w":' + b"[" * 2_000_001
    )
    os.mkfifo(tmp_path / "pipe.safetensors")

    done = run(tmp_path, ".", "none.safetensors")

    report = report_of(done)
    assert done.returncode == 2
    assert [Path(item["path"]).name for item in report["files"]] == ["good.safetensors"]
    assert {Path(item["path"]).stem for item in report["refused"]} == {
        "folder", "link", "lfs", "page", "deep", "pipe", "none",
    }  # fmt: skip
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 7
    assert all(line.startswith("refused: ") for line in done.stderr.splitlines())


def test_a_name_that_is_no_text_is_told_and_breaks_nothing(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(b"\xff.safetensors"))
    write(tmp_path / odd)
    (tmp_path / "link.safetensors").symlink_to(odd.with_suffix(".gone"))

    done = run(tmp_path, ".")

    report = report_of(done)
    assert [item["path"] for item in report["files"]] == [r"\udcff.safetensors"]
    assert r"\udcff.gone" in report["refused"][0]["reason"]


def test_strict_refuses_links_and_trailing_bytes(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", tail=b"x")
    write(tmp_path / "b.safetensors")
    (tmp_path / "c.safetensors").symlink_to("b.safetensors")

    done = run(tmp_path, "a.safetensors", "b.safetensors", "c.safetensors", "--strict")

    assert done.returncode == 2
    assert [item["reason"] for item in report_of(done)["refused"]] == [
        "has 1 bytes behind its last tensor", "is a link",
    ]  # fmt: skip


@pytest.mark.parametrize("verdict", ["match", "mismatch", "unknown"])
def test_a_hash_is_compared_with_the_published_one(tmp_path: Path, verdict: str) -> None:
    path = write(tmp_path / "mine.safetensors")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    entry = {"name": "mine.safetensors", "family": "transformer", "task": "ref2va"}
    if verdict != "unknown":
        entry["sha256"] = digest if verdict == "match" else "0" * 64
    (tmp_path / "more.json").write_text(json.dumps({"schema_version": 1, "files": [entry]}))

    done = run(tmp_path, "mine.safetensors", "--sha256", "--registry", "more.json")

    [found] = report_of(done)["files"]
    assert done.returncode == (1 if verdict == "mismatch" else 0)
    assert (found["hash"]["sha256"], found["hash"]["verdict"]) == (digest, verdict)
    assert found["tasks"] == (["ref2va"] if verdict == "match" else ["fl2va", "ref2va"])


def test_reports_are_kept_below_the_working_folder_and_written_where_asked(tmp_path: Path) -> None:
    write(tmp_path / "one/a.safetensors")
    write(tmp_path / "two/a.safetensors", "dit_pruned_bf16")

    done = run(tmp_path, "one", "two", "--save", "--quiet", "--json", "report.json")

    kept = sorted((tmp_path / "artifacts" / "checkpoints").iterdir())
    assert (done.returncode, done.stdout) == (0, "")
    assert len(kept) == 2
    assert kept[1].name == "a.json"
    assert kept[0].name.startswith("a-")
    for path in kept:
        jsonschema.validate(json.loads(path.read_text()), json.loads(SCHEMA.read_text()))
    assert len(json.loads((tmp_path / "report.json").read_text())["files"]) == 2


def test_a_registry_that_is_malformed_is_refused_in_a_sentence(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors")
    (tmp_path / "more.json").write_text("[]")

    done = run(tmp_path, "a.safetensors", "--registry", "more.json")

    assert done.returncode == 2
    assert done.stderr.startswith("error: registry more.json: ")


def test_help_ends_with_an_example(tmp_path: Path) -> None:
    done = run(tmp_path, "--help")

    assert done.returncode == 0
    assert "python tools/inspect_safetensors.py models/" in " ".join(done.stdout.split())
