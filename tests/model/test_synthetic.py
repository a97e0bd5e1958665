"""h3-tiny: real names, shapes and dtypes, the same bytes every time."""

import hashlib
from pathlib import Path

import pytest

from model.audio_vae import audio_config_from_shapes
from model.checkpoints.header import read_header
from model.config import TINY
from model.dit.checkpoint import transformer_config_from_shapes
from model.errors import SyntheticFolderError
from model.synthetic.h3_tiny import ensure_h3_tiny, write_h3_tiny
from model.text_encoder.layout import config_from_shapes
from model.video_vae import video_config_from_shapes


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*.*")
    }


def test_h3_tiny_is_written_to_the_same_bytes_twice(tmp_path: Path) -> None:
    write_h3_tiny(tmp_path / "a")
    write_h3_tiny(tmp_path / "b")

    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert len(digests(tmp_path / "a")) == 7


def test_every_file_says_that_its_weights_are_random(tmp_path: Path) -> None:
    write_h3_tiny(tmp_path)

    paths = sorted(tmp_path.rglob("*.safetensors"))
    assert len(paths) == 4
    assert all(read_header(path).metadata["weights"] == "random" for path in paths)


def test_dtypes_are_those_of_the_published_files(tmp_path: Path) -> None:
    write_h3_tiny(tmp_path)

    transformer = read_header(tmp_path / "diffusion_models/h3-tiny.safetensors").tensors
    assert transformer["adaln_t_table"].dtype == "F32"
    assert transformer["blocks.0.adaln_proj.linear.weight"].dtype == "F16"
    assert transformer["final_layer.adaln_proj.linear.bias"].dtype == "F16"
    assert transformer["blocks.1.attn.qkv_proj.weight"].dtype == "BF16"
    assert transformer["final_layer.audio_out.bias"].dtype == "F32"
    for name, dtype in (("qwen3vl", "BF16"), ("video-vae", "F16"), ("audio-vae", "F32")):
        (path,) = tmp_path.rglob(f"*{name}.safetensors")
        assert {item.dtype for item in read_header(path).tensors.values()} == {dtype}


def test_its_architecture_is_the_tiny_one_of_the_config(tmp_path: Path) -> None:
    write_h3_tiny(tmp_path)

    shapes = {path.stem: read_header(path).shapes for path in tmp_path.rglob("*.safetensors")}
    assert transformer_config_from_shapes(shapes["h3-tiny"], source=tmp_path) == TINY.transformer
    assert config_from_shapes(shapes["h3-tiny-qwen3vl"], source=tmp_path) == TINY.text_encoder
    assert video_config_from_shapes(shapes["h3-tiny-video-vae"], source=tmp_path) == TINY.video_vae
    assert audio_config_from_shapes(shapes["h3-tiny-audio-vae"], source=tmp_path) == TINY.audio_vae


def test_a_second_call_keeps_what_the_first_one_wrote(tmp_path: Path) -> None:
    folder = ensure_h3_tiny(tmp_path / "h3-tiny")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    ensure_h3_tiny(folder)

    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert [path.name for path in tmp_path.iterdir()] == ["h3-tiny"]


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "h3-tiny"
    folder.mkdir()
    (folder / "thesis.txt").write_text("precious")

    with pytest.raises(SyntheticFolderError, match="move it away"):
        ensure_h3_tiny(folder)

    assert (folder / "thesis.txt").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["h3-tiny"]


def test_a_file_or_a_dead_link_in_its_place_is_told_and_left_alone(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("precious")
    link.symlink_to(tmp_path / "nowhere")

    for place, says in (
        (file, "move it away"),
        (link, "move it away"),
        (file / "h3-tiny", "in another folder"),
    ):
        with pytest.raises(SyntheticFolderError, match=says):
            ensure_h3_tiny(place)

    assert file.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
