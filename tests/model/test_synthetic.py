"""h3-tiny: real names, shapes and dtypes, the same bytes every time."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

from model.checkpoints.header import read_header
from model.config import RELEASED
from model.errors import SyntheticFolderError
from model.synthetic.encoder_tensors import audio_encoder_shapes, video_encoder_shapes
from model.synthetic.h3_tiny import ensure_h3_tiny, write_h3_tiny
from model.video_vae import VideoDecoder

HEADERS = Path(__file__).parents[1] / "golden" / "headers"


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


def test_the_released_video_vae_file_has_562_tensors_with_its_encoder() -> None:
    with torch.device("meta"):
        decoder = VideoDecoder(RELEASED.video_vae).state_dict()
    encoder = video_encoder_shapes((128, 256, 256, 512, 512, 1024), latent_channels=24)

    assert len(decoder) + len(encoder) == 562
    assert encoder["encoder.down.3.block.0.nin_shortcut.weight"] == (512, 256, 1, 1, 1)
    assert sum(torch.Size(shape).numel() for shape in encoder.values()) == 180_335_536 + 2_352


def test_the_released_audio_vae_file_has_917_tensors_with_its_encoder() -> None:
    decoder = json.loads((HEADERS / "vae_audio_fp32_shapes.json").read_text())
    own = {name for name in decoder if name.startswith(("decoder.", "dec_in_proj.", "latents_"))}
    encoder = audio_encoder_shapes(64, latent_channels=32)

    assert len(own) + len(encoder) == 917
    assert encoder["encoder.block.5.block.4.weight"] == (2048, 1024, 10)
    assert encoder["pre_block.attn.qkv.weight"] == (6144, 2048)
