"""Every variant by the commands alone: write it, inspect it, make a film with it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from media.probe import probe
from model.checkpoints.descriptions import VARIANTS

ROOT = Path(__file__).parents[3]
OPTION = {
    "dit": "--checkpoint",
    "te": "--text-encoder",
    "vae_video": "--video-vae",
    "vae_audio": "--audio-vae",
}
PLAIN = {
    "dit": "dit_pruned_bf16",
    "te": "te_qwen3vl_bf16",
    "vae_video": "vae_video_fp16",
    "vae_audio": "vae_audio_fp32",
}
FILM = ["--width", "64", "--height", "32", "--frames", "5", "--steps", "2", "--seed", "7"]


def run(*arguments: str, folder: Path) -> dict[str, Any]:
    """Run a Python command in `folder`; return its JSON line."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def write(variant: str, folder: Path, *options: str) -> str:
    return str(run("-m", "model.synthetic", "--variant", variant, *options, folder=folder)["path"])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One plain file for each role."""
    folder = tmp_path_factory.mktemp("plain")
    return {role: str(folder / write(variant, folder, ".")) for role, variant in PLAIN.items()}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_written_inspected_and_makes_a_film(
    variant: str, models: dict[str, str], tmp_path: Path
) -> None:
    path = write(variant, tmp_path, "one.safetensors")
    sparse = write(variant, tmp_path, "--size", "full", "--sparse", "sparse.safetensors")

    report = run(str(ROOT / "tools" / "inspect_safetensors.py"), path, sparse, folder=tmp_path)
    tiny, full = report["files"]
    assert (tiny["variant"], tiny["released_size"], tiny["runtime"]["loads"]) == (variant, False, True)
    assert (full["variant"], full["released_size"], full["runtime"]["loads"]) == (variant, True, False)
    assert full["holes"]["size_bytes"] > 0

    role = next((role for role in PLAIN if variant.startswith(role)), None)
    files = models if role is None else {**models, role: path}
    options = [part for name, file in files.items() for part in (OPTION[name], file)]
    if role is None:
        options += ["--lora", f"turbo={path}"]
    tool = str(ROOT / "tools" / "direct_t2v_preview.py")
    facts = run(tool, "--prompt", "a red fox", *FILM, *options, folder=tmp_path)

    assert facts["weights"] == "random"
    assert probe(tmp_path / facts["output"]).frames == 5
