"""Names that no file can have: one printable sentence each, wherever such a name stands."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from model.errors import CheckpointFileError, ModelError
from model.loading.files import find_files
from model.places import is_file, is_folder
from model.synthetic.h3_tiny import write_h3_tiny
from model.text_encoder.tokenizer import load_tokenizer
from queue_schemas.errors import EXIT_REFUSED

NAMES = {
    "too long": "A" * 300,
    "too deep": "a/" * 3_000,
    "longer than a message": "A" * 100_000,
    "NUL": "a\0b",
    "half a surrogate pair": "\ud800",
    "a line break": "a\nb",
    "a link to itself": "loop",
}
Find = Callable[[Path, str], object]
OPTIONS: dict[str, Find] = {
    "models_dir": lambda folder, name: find_files(folder / name),
    "checkpoint": lambda folder, name: find_files(folder, checkpoint=name),
    "a set": lambda folder, name: find_files(folder, checkpoint=f"{name}.json"),
    "text_encoder": lambda folder, name: find_files(folder, text_encoder=str(folder / name)),
    "video_vae": lambda folder, name: find_files(folder, video_vae=name),
    "audio_vae": lambda folder, name: find_files(None, audio_vae=name),
    "tokenizer_dir": lambda folder, name: load_tokenizer(folder / name),
    "text encoder of a set": lambda folder, name: find_with_set(folder, text_encoder=name),
    "transformer of a set": lambda folder, name: find_with_set(folder, transformer={"fl2va": name}),
    "tokenizer of a set": lambda folder, name: find_with_set(folder, tokenizer=name),
}


def find_with_set(folder: Path, **fields: object) -> object:
    own = {"name": "night", "transformer": {"fl2va": "h3-tiny"}, "text_encoder": "h3-tiny-qwen3vl"}
    (folder / "night.json").write_text(json.dumps(own | fields))
    return find_files(folder, checkpoint=str(folder / "night.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("places") / "models"
    write_h3_tiny(folder)
    for place in (folder, folder / "diffusion_models", folder / "vae", folder / "text_encoders"):
        (place / "loop").symlink_to(place / "loop")
    (folder / "loop.json").symlink_to(folder / "loop.json")
    return folder


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_no_file_can_have_is_refused_in_one_printable_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, option: str, name: str
) -> None:
    monkeypatch.chdir(folder)

    with pytest.raises(ModelError) as caught:
        OPTIONS[option](folder, NAMES[name])

    assert caught.value.code.exit_code == EXIT_REFUSED
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2_000


def test_the_systems_own_reason_is_told(folder: Path) -> None:
    with pytest.raises(CheckpointFileError, match="File name too long"):
        is_file(folder / ("A" * 300))
    with pytest.raises(CheckpointFileError, match=r"loop: .*symbolic links"):
        is_folder(folder / "loop")
    with pytest.raises(CheckpointFileError, match=r"a\\x00b: cannot be the name of a file"):
        is_file(folder / "a\0b")


def test_links_among_the_models_that_lead_nowhere_are_passed_over(folder: Path) -> None:
    (folder / "vae" / "again").symlink_to(folder / "vae")
    (folder / "vae" / "gone.safetensors").symlink_to(folder / "nothing")
    (folder / "vae" / "round.safetensors").symlink_to(folder / "vae" / "round.safetensors")

    assert find_files(folder).video_vae.path.name == "h3-tiny-video-vae.safetensors"
