"""LoRAs of a resident set, from file to film: found by name, known by hash, matched before they load."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_numbers import comfyui, draw_lora
from safetensors.torch import save_file

from model.base import Generation
from model.checkpoints.header import read_header
from model.config import TINY
from model.loading.files import find_files
from model.lora.cards import published_lora, registry_of
from model.lora.errors import LoraFileError, LoraMissingError, LoraNotLoadedError, LoraPartialError
from model.pipeline import H3Pipeline
from model.startup import load_pipeline
from model.synthetic.h3_tiny import write_h3_tiny
from queue_schemas.jobs import Job, build_job
from queue_schemas.published import PublishedFile, PublishedFiles


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """h3-tiny, a LoRA that fits it, and one of which a module does not."""
    folder = tmp_path_factory.mktemp("models")
    write_h3_tiny(folder)
    (folder / "loras" / "styles").mkdir(parents=True)
    draw_lora(TINY.transformer, seed=2).write(folder / "loras" / "turbo.safetensors", "comfyui")
    extra = comfyui(draw_lora(TINY.transformer, seed=3))
    extra = {name.replace("blocks.1.mlp.fc1", "blocks.9.mlp.fc1"): value for name, value in extra.items()}
    save_file({n: t.contiguous() for n, t in extra.items()}, folder / "loras" / "styles" / "ink.safetensors")
    own = {"name": "turbo.safetensors", "family": "lora", "steps": 3, "shift_video": 7.0}
    own["header_sha256"] = read_header(folder / "loras" / "turbo.safetensors").sha256
    (folder / "h3_published.json").write_text(json.dumps({"schema_version": 1, "files": [own]}))
    return folder


@pytest.fixture(scope="module")
def pipeline(models: Path) -> H3Pipeline:
    return load_pipeline(models_dir=models, loras=["turbo", "more=turbo"], device="cpu")


def make_job(**fields: Any) -> Job:
    small = {"prompt": "a red fox", "width": 64, "height": 32, "frames": 5, "steps": 2, "seed": 7}
    return build_job({**small, "checkpoint": "h3-tiny", **fields})


@pytest.fixture(scope="module")
def film(pipeline: H3Pipeline) -> Callable[..., Generation]:
    def make(*loras: dict[str, Any]) -> Generation:
        job = make_job(loras=list(loras))
        return pipeline.generate(job, on_progress=lambda _: None, cancelled=lambda: False)

    return make


def test_a_job_gets_its_loras_and_the_next_one_none(film: Callable[..., Generation]) -> None:
    plain, half, whole = film(), film({"name": "turbo", "strength": 0.5}), film({"name": "turbo"})
    halves = film({"name": "turbo", "strength": 0.5}, {"name": "more", "strength": 0.5})

    assert not np.array_equal(half.frames, plain.frames)
    assert not np.array_equal(half.frames, whole.frames)
    close = np.abs(halves.frames.astype(int) - whole.frames.astype(int))
    assert close.max() <= 1  # the same sum, rounded otherwise
    assert np.array_equal(film().frames, plain.frames)


def test_the_card_tells_what_was_matched_and_what_it_was_made_for(pipeline: H3Pipeline) -> None:
    turbo, more = pipeline.card().loras

    assert (turbo.name, turbo.file, more.name) == ("turbo", "turbo.safetensors", "more")
    assert (turbo.matched_modules, turbo.matched_tensors, turbo.num_tensors) == (12, 36, 36)
    assert (turbo.published, turbo.steps, turbo.shift_video) == ("turbo.safetensors", 3, 7.0)
    assert turbo.identity == more.identity


def test_a_job_with_a_lora_that_is_not_loaded_is_refused_before_it_costs_anything(
    pipeline: H3Pipeline,
) -> None:
    with pytest.raises(LoraNotLoadedError, match="no LoRA 'ink'; loaded are turbo, more"):
        pipeline.check(make_job(loras=[{"name": "ink"}]))


def test_a_lora_that_fits_in_part_is_loaded_by_leave_only_and_told(
    models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LoraPartialError, match="33 of 36 tensors fit this transformer; 3 name no linear"):
        load_pipeline(models_dir=models, loras=["styles/ink"], device="cpu")

    pipeline = load_pipeline(models_dir=models, loras=["styles/ink"], allow_partial_lora=True, device="cpu")

    (ink,) = pipeline.card().loras
    assert (ink.name, ink.matched_tensors, list(ink.dropped.values())) == ("ink", 33, [3])
    assert "LoRA ink is loaded in part: 3 name no linear" in caplog.text


def test_a_set_names_its_loras_and_an_option_adds_others(models: Path) -> None:
    files = {"transformer": {"fl2va": "h3-tiny"}, "text_encoder": "h3-tiny-qwen3vl"}
    own = [{"name": "fast", "file": "loras/turbo.safetensors"}]
    path = models / "night.json"
    path.write_text(json.dumps({"name": "night", **files, "loras": own}))

    found = find_files(models, checkpoint=str(path), loras=["ink=styles/ink"])

    assert [(lora.name, lora.header.path.name) for lora in found.loras] == [
        ("fast", "turbo.safetensors"),
        ("ink", "ink.safetensors"),
    ]
    with pytest.raises(LoraFileError, match=r"'fast' is .*turbo\.safetensors already"):
        find_files(models, checkpoint=str(path), loras=["fast=styles/ink"])


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (
            "none",
            LoraMissingError,
            r"no LoRA 'none' found.*in the loras folder: styles/ink\.safetensors, turbo",
        ),
        ("a b=turbo", LoraFileError, "'a b' is no name for jobs; give it one: --lora turbo=turbo"),
    ],
)
def test_a_lora_that_cannot_be_found_or_named_is_told(
    models: Path, text: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        find_files(models, loras=[text])


def test_a_file_is_known_by_its_header_or_by_the_hash_of_all_of_it(models: Path) -> None:
    header = read_header(models / "loras" / "styles" / "ink.safetensors")
    whole = hashlib.sha256(header.path.read_bytes()).hexdigest()
    by_hash = PublishedFile(name="ink.safetensors", family="lora", sha256=whole, steps=9)
    other_size = by_hash.model_copy(update={"size_bytes": 1})
    other = by_hash.model_copy(update={"sha256": "00" * 32})

    assert published_lora(header, PublishedFiles(files=(by_hash,))) == by_hash
    assert published_lora(header, PublishedFiles(files=(other_size,))) is None
    assert published_lora(header, PublishedFiles(files=(other,))) is None
    assert published_lora(header, registry_of(None)) is None
