"""Resident sets: one name for the files of a node, strict about what it names; and the sample of a file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoints.header import read_header
from model.errors import CheckpointMissingError, ResidentSetError
from model.loading.files import find_files
from model.loading.sample import BLOCK_BYTES, BLOCKS, block_offsets, sample_sha256
from model.lora.cards import OWN_REGISTRY
from model.synthetic.h3_tiny import write_h3_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resident") / "h3-tiny"
    write_h3_tiny(folder)
    transformer = folder / "diffusion_models" / "h3-tiny.safetensors"
    (folder / "diffusion_models" / "references.safetensors").hardlink_to(transformer)
    return folder


def write_set(path: Path, **fields: Any) -> Path:
    """A resident set file; what is not given is h3-tiny's."""
    own = {"transformer": {"fl2va": "h3-tiny"}, "text_encoder": "h3-tiny-qwen3vl"}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": path.stem, **own, **fields}))
    return path


def test_a_set_below_the_models_folder_is_a_checkpoint_by_its_name(tiny: Path) -> None:
    write_set(tiny / "h3_sets" / "night.json", transformer={"fl2va": "h3-tiny", "ref2va": "references"})

    files = find_files(tiny, checkpoint="night")

    assert (files.name, files.transformer.path.name) == ("night", "h3-tiny.safetensors")
    assert files.transformer_task == "fl2va"
    assert files.ref2va_transformer is not None
    assert files.ref2va_transformer.path.name == "references.safetensors"
    assert files.video_vae.path.name == "h3-tiny-video-vae.safetensors"
    assert files.tokenizer_dir == tiny / "tokenizer"


def test_t2va_runs_on_a_set_that_has_only_a_ref2va_transformer(tiny: Path, tmp_path: Path) -> None:
    path = write_set(tmp_path / "refs.json", transformer={"ref2va": "references"})

    files = find_files(tiny, checkpoint=str(path))

    assert (files.name, files.transformer_task, files.ref2va_transformer) == ("refs", "ref2va", None)
    assert files.transformer.path.name == "references.safetensors"


@pytest.mark.parametrize(("longer", "task"), [(0, "ref2va"), (1, None)])
def test_a_file_named_alone_has_the_task_of_the_published_file_of_its_name_and_length(
    tiny: Path, longer: int, task: str | None
) -> None:
    size = (tiny / "diffusion_models" / "references.safetensors").stat().st_size + longer
    known = {"name": "references.safetensors", "family": "transformer", "task": "ref2va", "size_bytes": size}
    (tiny / OWN_REGISTRY).write_text(json.dumps({"files": [known]}))

    files = find_files(tiny, checkpoint="references")

    (tiny / OWN_REGISTRY).unlink()
    assert files.transformer_task == task


def test_a_set_needs_no_models_folder_when_its_paths_lead_from_its_own(tiny: Path) -> None:
    names = {
        "transformer": {"fl2va": "diffusion_models/h3-tiny.safetensors"},
        "text_encoder": "text_encoders/h3-tiny-qwen3vl.safetensors",
        "video_vae": "vae/h3-tiny-video-vae.safetensors",
        "audio_vae": "vae/h3-tiny-audio-vae.safetensors",
        "tokenizer": "tokenizer",
    }
    path = write_set(tiny / "whole.json", **names)

    files = find_files(None, checkpoint=str(path))

    assert {role: header.path.name for role, header in files.headers().items()} == {
        "transformer": "h3-tiny.safetensors",
        "text_encoder": "h3-tiny-qwen3vl.safetensors",
        "video_vae": "h3-tiny-video-vae.safetensors",
        "audio_vae": "h3-tiny-audio-vae.safetensors",
    }
    assert files.tokenizer_dir == tiny / "tokenizer"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"loras": [{"name": "../turbo", "file": "turbo.safetensors"}]}, "loras.0.name"),
        ({"transformer": {}}, "name a transformer for fl2va, for ref2va"),
        ({"transformer": {"i2va": "h3-tiny"}}, "unknown field 'transformer.i2va'"),
        ({"name": "../night"}, "name: String should match"),
        ({"text_encode": "x"}, "did you mean 'text_encoder'"),
        ({"tokenizer": "nowhere"}, "no tokenizer.json in"),
    ],
)
def test_a_set_that_cannot_be_meant_is_refused_with_its_fault(
    tiny: Path, tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    path = write_set(tmp_path / "bad.json", **fields)

    with pytest.raises(ResidentSetError, match=says):
        find_files(tiny, checkpoint=str(path))


def test_a_set_whose_second_transformer_is_missing_is_refused(tiny: Path, tmp_path: Path) -> None:
    path = write_set(tmp_path / "two.json", transformer={"fl2va": "h3-tiny", "ref2va": "absent"})

    with pytest.raises(CheckpointMissingError, match=r"absent.*h3-tiny, references"):
        find_files(tiny, checkpoint=str(path))


def test_an_option_cannot_change_what_a_set_names(tiny: Path, tmp_path: Path) -> None:
    path = write_set(tmp_path / "fixed.json")

    with pytest.raises(ResidentSetError, match="--text-encoder"):
        find_files(tiny, checkpoint=str(path), text_encoder="h3-tiny-qwen3vl")


def test_a_file_in_the_sets_folder_must_carry_its_own_name(tiny: Path) -> None:
    path = write_set(tiny / "h3_sets" / "day.json", name="night")

    with pytest.raises(ResidentSetError, match="names itself 'night'"):
        find_files(tiny, checkpoint="day")
    path.unlink()


def test_a_set_that_is_no_file_lists_those_that_are(tiny: Path) -> None:
    write_set(tiny / "h3_sets" / "night.json")

    with pytest.raises(ResidentSetError, match=r"is no file; sets in h3_sets: .*night"):
        find_files(tiny, checkpoint="nihgt.json")


def test_two_files_of_one_header_and_other_values_have_other_samples(tiny: Path, tmp_path: Path) -> None:
    path = tiny / "diffusion_models" / "h3-tiny.safetensors"
    tuned = tmp_path / "tuned.safetensors"
    metadata = dict(read_header(path).metadata)
    save_file({name: value + 0.01 for name, value in load_file(path).items()}, tuned, metadata=metadata)

    base, other = read_header(path), read_header(tuned)

    assert base.shapes == other.shapes
    assert sample_sha256(base) == sample_sha256(read_header(path))
    assert sample_sha256(base) != sample_sha256(other)


@pytest.mark.parametrize(
    "payload", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, BLOCKS * BLOCK_BYTES + 1, 66 * 10**9]
)
def test_blocks_cover_a_small_file_and_span_a_large_one(payload: int) -> None:
    offsets = block_offsets(payload)

    assert len(offsets) <= BLOCKS
    assert offsets == sorted(set(offsets))
    if payload:
        assert offsets[0] == 0
        assert offsets[-1] < payload <= offsets[-1] + BLOCK_BYTES
    if payload <= BLOCKS * BLOCK_BYTES:
        assert offsets == list(range(0, payload, BLOCK_BYTES))


def test_a_change_beyond_the_first_megabytes_is_seen(tmp_path: Path) -> None:
    values = torch.zeros(4 * 1024 * 1024)
    path = tmp_path / "a.safetensors"
    save_file({"w": values}, path)
    before = sample_sha256(read_header(path))
    values[-1] = 1.0
    save_file({"w": values}, path)

    assert sample_sha256(read_header(path)) != before
