"""The preview tool as a person runs it: one line on stdout, one film, or one sentence and exit code 2."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from media.probe import probe

TOOL = Path(__file__).parents[2] / "tools" / "direct_t2v_preview.py"
SMALL = ["--width", "64", "--height", "32", "--frames", "5", "--steps", "2", "--seed", "7"]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("H3_")}
    return subprocess.run(
        [sys.executable, str(TOOL), *arguments],
        cwd=folder,
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder, so that h3-tiny is written once for all tests."""
    return tmp_path_factory.mktemp("work")


def test_without_model_files_it_makes_a_film_with_h3_tiny_and_says_so_in_one_line(folder: Path) -> None:
    done = run(folder, "--prompt", "a red fox", *SMALL)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    facts = json.loads(line)
    assert facts["weights"] == "random"
    assert "h3-tiny, whose weights are random" in facts["notes"][-1]
    film = probe(folder / facts["output"])
    assert (film.width, film.height, film.frames) == (64, 32, 5)
    assert film.samples == round(5 * 32000 / 24)


def test_quiet_prints_nothing_and_progress_tells_each_step(folder: Path) -> None:
    done = run(folder, "--prompt", "a red fox", *SMALL, "--quiet", "--progress", "--output", "a/b.mp4")

    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "step 1/2: " in done.stderr
    assert "step 2/2: " in done.stderr
    assert (folder / "a" / "b.mp4").is_file()


def test_named_files_are_used_and_name_the_checkpoint(folder: Path) -> None:
    run(folder, "--prompt", "x", *SMALL)
    models = folder / "outputs" / "h3-tiny"

    done = run(
        folder,
        *("--prompt", "a red fox", *SMALL, "--models-dir", str(models), "--checkpoint", "h3-tiny"),
        *("--text-encoder", "h3-tiny-qwen3vl", "--video-vae", "h3-tiny-video-vae.safetensors"),
        *("--audio-vae", str(models / "vae" / "h3-tiny-audio-vae.safetensors"), "--vae-dtype", "float32"),
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["checkpoint"] == "h3-tiny"


def test_loras_are_loaded_and_applied_at_their_strengths(folder: Path) -> None:
    run(folder, "--prompt", "a red fox", *SMALL)
    lora = folder / "turbo:2.safetensors"  # a colon is no strength
    save_file(
        {
            "blocks.0.mlp.fc2.lora_A.weight": torch.randn(2, 256) / 16,
            "blocks.0.mlp.fc2.lora_B.weight": torch.randn(256, 2),
        },
        lora,
    )

    done = run(folder, "--prompt", "a red fox", *SMALL, "--lora", f"turbo={lora}:0.5", "--output", "lora.mp4")

    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert [(own["name"], own["strength"], own["matched_tensors"]) for own in facts["loras"]] == [
        ("turbo", 0.5, 2)
    ]
    assert (folder / "lora.mp4").read_bytes() != (folder / "outputs" / "preview.mp4").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prompt", "x", "--frames", "100"], "the nearest are 90 and 107"),
        (["--prompt", "x", "--width", "100"], "the nearest are 96 and 128"),
        (["--prompt", " "], "the prompt is empty"),
        (["--prompt", "y" * 7001], "7,001 characters; at most 7,000"),
        (["--prompt", "x", "--output", "film.avi"], "must end in .mp4"),
        (["--prompt", "x", "--models-dir", "nowhere"], "looked at nowhere; this models folder"),
        (["--prompt", "x", "--models-dir", "outputs/h3-tiny", "--checkpoint", "zz"], "diffusion_models/zz"),
        (["--prompt", "x", "--output", "/proc/x.mp4"], "directory; name another file by --output"),
        (["--prompt", "x", "--checkpoint", ""], "--checkpoint is empty; name a file"),
        (["--prompt", "x", "--device", "tpu"], "device 'tpu' cannot be used"),
        (["--prompt", "x", "--lora", "turbo=nowhere:0.5"], "no LoRA 'nowhere' found"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    folder: Path, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = run(tmp_path if "nowhere" in arguments else folder, *arguments)

    assert done.returncode == 2
    assert done.stdout == ""
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("*.mp4"))
