"""Whole jobs through the resident models, on h3-tiny: what changes a film, what does not, what is refused."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from model.base import Generation
from model.errors import (
    AttentionUnavailableError,
    DeviceUnavailableError,
    GenerationCancelledError,
    OutputRejectedError,
    WrongCheckpointError,
)
from model.pipeline import H3Pipeline
from model.startup import choose_device, load_pipeline
from queue_schemas.conventions import COMFYUI, PRESETS
from queue_schemas.events import ProgressEvent, Stage
from queue_schemas.jobs import ConventionsName, Job, build_job

Film = Callable[..., Generation]


def make_job(**fields: Any) -> Job:
    small = {"prompt": "a red fox", "width": 64, "height": 32, "frames": 5, "steps": 2, "seed": 7}
    return build_job({**small, "checkpoint": "h3-tiny", **fields})


@pytest.fixture(scope="module")
def film(pipeline: H3Pipeline) -> Film:
    def make(**fields: Any) -> Generation:
        return pipeline.generate(make_job(**fields), on_progress=lambda _: None, cancelled=lambda: False)

    return make


@pytest.fixture(scope="module")
def plain(film: Film) -> Generation:
    return film()


def same(left: Generation, right: Generation) -> bool:
    return np.array_equal(left.frames, right.frames) and np.array_equal(left.waveform, right.waveform)


def test_a_film_has_the_asked_size_and_a_track_as_long_as_itself(film: Film) -> None:
    made = film(width=96, height=64, frames=22)

    assert made.frames.shape == (22, 64, 96, 3)
    assert made.frames.dtype == np.uint8
    assert made.waveform.shape == (2, round(22 * 32000 / 24))
    assert made.tokens.video == 7 * 2 * 3
    assert made.tokens.audio == 2 * 37
    assert made.tokens.text == len("a red fox")  # one token per byte in the tiny tokenizer
    assert made.evaluations == 2
    assert len(made.seconds.denoise_steps) == 2


def test_a_film_is_neither_flat_nor_silent_nor_clipped(plain: Generation) -> None:
    assert plain.frames.std() > 10
    assert 0.01 < np.abs(plain.waveform).max() <= 1.0
    assert (plain.waveform[0] != plain.waveform[1]).any()


def test_the_same_seed_gives_the_same_bits(film: Film, plain: Generation) -> None:
    assert same(film(), plain)


@pytest.fixture(scope="module")
def three_steps(film: Film) -> Generation:
    """At 3 steps the two schedules visit other sigmas, and the multistep sampler has a step of its own."""
    return film(steps=3)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 8},
        {"prompt": "a blue fox"},
        {"steps": 4},
        {"shift_video": 6.0},
        {"shift_audio": 5.0},
        {"conventions": "diffusers"},
        {"schedule": "linear"},
        {"sampler": "res_multistep"},
    ],
)
def test_every_field_of_the_job_reaches_the_film(
    film: Film, three_steps: Generation, change: dict[str, Any]
) -> None:
    assert not same(film(**{"steps": 3, **change}), three_steps)


@pytest.mark.parametrize(
    ("field", "other", "frames_change", "sound_changes"),
    [
        ("audio_noise_layout", "rows", True, True),
        ("audio_clock", "own", True, True),
        ("prompt_escapes", False, True, True),
        ("tile_seam", "raw", True, False),
        ("uint8_rounding", "round", True, False),
        ("audio_loudness_limit", False, False, True),
    ],
)
def test_every_convention_that_matters_in_float32_reaches_the_film(
    *,
    film: Film,
    monkeypatch: pytest.MonkeyPatch,
    field: str,
    other: Any,
    frames_change: bool,
    sound_changes: bool,
) -> None:
    # Two tiles each way, so that overlaps cross; the prompt holds an escape.
    fields = {"width": 288, "height": 288, "prompt": r"a \(red\) fox"}
    comfyui = film(**fields)

    monkeypatch.setitem(PRESETS, ConventionsName.COMFYUI, replace(COMFYUI, **{field: other}))
    changed = film(**fields)

    assert np.array_equal(comfyui.frames, changed.frames) is not frames_change
    assert np.array_equal(comfyui.waveform, changed.waveform) is not sound_changes


def test_the_dtype_and_the_tile_size_of_the_vae_change_the_pixels_but_not_the_sound(
    film: Film, plain: Generation
) -> None:
    exact = film(vae_dtype="float32")
    wide = film(width=160, height=64, vae_tile_size=96)
    whole = film(width=160, height=64)

    assert exact.backends.video_vae_dtype == "float32"
    assert np.array_equal(exact.waveform, plain.waveform)
    assert np.abs(exact.frames.astype(int) - plain.frames).max() <= 3  # float16 rounding of a tiny decoder
    assert np.array_equal(wide.waveform, whole.waveform)
    assert not np.array_equal(wide.frames, whole.frames)


def test_the_float16_decoder_comes_back_after_a_float32_job(film: Film, plain: Generation) -> None:
    film(vae_dtype="float32")

    assert same(film(), plain)


def test_progress_names_every_stage_in_order_and_counts_the_steps(pipeline: H3Pipeline) -> None:
    events: list[ProgressEvent] = []

    pipeline.generate(make_job(), on_progress=events.append, cancelled=lambda: False)

    stages = list(dict.fromkeys(event.stage for event in events))
    assert stages == [Stage.TEXT_ENCODE, Stage.DENOISE, Stage.VIDEO_DECODE, Stage.AUDIO_DECODE]
    denoise = [(event.step, event.steps) for event in events if event.stage is Stage.DENOISE]
    assert denoise == [(0, 2), (1, 2), (2, 2)]


def test_a_cancel_stops_before_the_next_step(pipeline: H3Pipeline) -> None:
    steps: list[int] = []

    def on_progress(event: ProgressEvent) -> None:
        if event.stage is Stage.DENOISE:
            steps.append(event.step)

    with pytest.raises(GenerationCancelledError) as caught:
        pipeline.generate(make_job(steps=5), on_progress=on_progress, cancelled=lambda: 2 in steps)

    assert caught.value.step == 2
    assert steps == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"checkpoint": "other"}, WrongCheckpointError),
        ({"attention": "flash9"}, AttentionUnavailableError),
    ],
)
def test_a_job_that_cannot_run_here_is_refused_by_check(
    pipeline: H3Pipeline, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        pipeline.check(make_job(**fields))


def test_the_card_says_what_is_resident(pipeline: H3Pipeline) -> None:
    card = pipeline.card()

    assert card.checkpoint.name == "h3-tiny"
    assert card.checkpoint.weights == "random"
    assert card.checkpoint.transformer_layout == "pruned"
    roles = [file.role for file in card.checkpoint.files]
    assert roles == ["transformer", "text_encoder", "video_vae", "audio_vae", "tokenizer"]
    assert card.attention_backends == ["sdpa"]
    assert torch.__version__.startswith(card.versions["torch"])  # a local build adds +cpu or +cu130


def test_latents_that_are_not_finite_end_as_output_rejected(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    tensors = load_file(tiny / "diffusion_models" / "h3-tiny.safetensors")
    tensors["final_layer.video_out.weight"].fill_(3e38)  # finite itself, which is all that loading can ask
    save_file(tensors, broken)
    pipeline = load_pipeline(models_dir=tiny, checkpoint=str(broken), device="cpu")

    with pytest.raises(OutputRejectedError, match="video latents"):
        pipeline.generate(make_job(checkpoint="broken"), on_progress=lambda _: None, cancelled=lambda: False)


def test_without_model_files_h3_tiny_is_written_and_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []

    pipeline = load_pipeline(device="cpu", on_progress=said.append, profile_memory=True, drop_cache=True)

    assert pipeline.files.name == "h3-tiny"
    assert "synthetic checkpoint h3-tiny" in said[0]
    memory = [
        re.fullmatch(r"[\w ]+ \[host (\d\.\d\d) GB, at most (\d\.\d\d) GB\]", line) for line in said[1:]
    ]
    assert len(memory) == 7
    assert all(line is not None and 0 < float(line[1]) <= float(line[2]) for line in memory)
    assert (tmp_path / "outputs" / "h3-tiny" / "vae").is_dir()


@pytest.mark.parametrize("name", ["tpu", "mps", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(DeviceUnavailableError, match=name):
        choose_device(name)


@pytest.mark.gpu
def test_a_film_is_made_on_the_gpu_and_is_the_same_twice(tiny: Path) -> None:
    pipeline = load_pipeline(models_dir=tiny, device="cuda")
    job = make_job(width=96, height=64, frames=22, steps=3)

    first = pipeline.generate(job, on_progress=lambda _: None, cancelled=lambda: False)
    second = pipeline.generate(job, on_progress=lambda _: None, cancelled=lambda: False)

    assert same(first, second)
    assert first.backends.transformer_dtype == "bfloat16"
    assert first.peak_device_bytes
