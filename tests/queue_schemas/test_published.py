"""The registry of published files: what is shipped, and what a user adds to it."""

import json
from pathlib import Path
from typing import Any

import pytest

from queue_schemas import limits
from queue_schemas.errors import InvalidRequestError
from queue_schemas.published import load_published, published_files

MINE = {"name": "mine.safetensors", "family": "lora", "steps": 6, "shift_video": 6.0}


def write(path: Path, *files: Any, **fields: Any) -> Path:
    path.write_text(json.dumps({"schema_version": 1, "files": files, **fields}))
    return path


def test_a_turbo_lora_is_known_by_its_header_with_steps_and_shifts() -> None:
    [found] = published_files().with_header(
        "3db9fe99ff46229525c43cbe6ba5bafc8d96bdeb22ee69949ef61d4d58d561d8"
    )

    assert (found.family, found.task, found.steps) == ("lora", "fl2va", 4)
    assert (found.shift_video, found.shift_audio) == (6.0, 3.0)


def test_both_tasks_share_the_header_of_a_layout_without_metadata_and_differ_in_content() -> None:
    int8 = published_files().named("minimax_h3_ref2va_pruned_int8_convrot.safetensors")
    assert int8 is not None
    assert int8.header_sha256 is not None

    twins = published_files().with_header(int8.header_sha256)

    assert {file.task for file in twins} == {"fl2va", "ref2va"}
    assert published_files().with_sha256(int8.sha256 or "") == int8


def test_a_users_file_adds_entries_and_replaces_those_of_the_same_name(tmp_path: Path) -> None:
    audio = {"name": "minimax_h3_audio_vae_fp32.safetensors", "family": "audio_vae", "sha256": "0" * 64}

    found = load_published(write(tmp_path / "more.json", MINE, audio))

    assert len(found.files) == len(published_files().files) + 1
    assert found.named("mine.safetensors") is not None
    assert found.with_sha256("0" * 64) == found.named("minimax_h3_audio_vae_fp32.safetensors")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([{"name": "a.safetensors"}], "family"),
        ([{**MINE, "name": "folder/a.safetensors"}], "name"),
        ([{**MINE, "name": "a.ckpt"}], "name"),
        ([{**MINE, "family": "unet"}], "family"),
        ([{**MINE, "sha256": "ABC"}], "sha256"),
        ([{**MINE, "steps": 0}], "steps"),
        ([{**MINE, "steps": 4.0}], "steps"),
        ([{**MINE, "shift_video": -1}], "shift_video"),
        ([{**MINE, "stepz": 4}], "stepz"),
        ([{**MINE, "family": "video_vae"}], "belong to a lora"),
        ([MINE, MINE], "mine.safetensors stands there twice"),
        ([{**MINE, "name": f"{i}.safetensors"} for i in range(limits.PUBLISHED_FILES + 1)], "files"),
        (["a"] * 600_000, "bytes of JSON"),
    ],
)
def test_a_malformed_registry_is_refused_in_one_sentence(
    tmp_path: Path, files: list[Any], reason: str
) -> None:
    path = write(tmp_path / "more.json", *files)

    with pytest.raises(InvalidRequestError, match=reason) as caught:
        load_published(path)

    assert str(path) in str(caught.value)


def test_a_registry_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        load_published(tmp_path / "none.json")
