"""Finding and loading a resident set: by content, strictly, with errors that say where and what."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.checkpoints.descriptions import describe
from model.checkpoints.header import read_header
from model.config import TINY
from model.errors import (
    CheckpointAmbiguousError,
    CheckpointFileError,
    CheckpointMismatchError,
    CheckpointMissingError,
    EmptyNameError,
    EncoderMissingError,
)
from model.loading.files import find_files
from model.loading.models import (
    load_audio_decoder,
    load_audio_encoder,
    load_transformer,
    load_video_decoder,
    load_video_encoder,
    require_encoder,
)
from model.loading.plans import check_files
from model.synthetic.values import Values
from model.synthetic.writer import write_file

CPU = torch.device("cpu")
Damage = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def link_all(source: Path, target: Path) -> Path:
    """A folder of links to the same files, so that a test can add and take away."""
    for path in source.rglob("*.*"):
        link = target / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return target


def write_set(path: Path, **fields: Any) -> Path:
    """A resident set file; what is not given is h3-tiny's."""
    own = {"transformer": {"fl2va": "h3-tiny"}, "text_encoder": "h3-tiny-qwen3vl"}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": path.stem, **own, **fields}))
    return path


def transformer_file(folder: Path) -> Path:
    return folder / "diffusion_models" / "h3-tiny.safetensors"


def test_each_role_is_found_by_its_tensors_whatever_its_file_is_called(tiny: Path, tmp_path: Path) -> None:
    folder = link_all(tiny, tmp_path)
    transformer_file(folder).rename(folder / "diffusion_models" / "my copy (1).safetensors")
    save_file({"other.weight": torch.ones(2)}, folder / "diffusion_models" / "flux.safetensors")

    files = find_files(folder)

    assert files.transformer.path.name == "my copy (1).safetensors"
    assert files.name == "my-copy--1-"
    assert files.video_vae.path.name == "h3-tiny-video-vae.safetensors"
    assert files.audio_vae.path.name == "h3-tiny-audio-vae.safetensors"
    assert files.tokenizer_dir == folder / "tokenizer"


def test_a_file_is_named_by_its_stem_its_name_or_its_path(tiny: Path) -> None:
    by_stem = find_files(tiny, checkpoint="h3-tiny")
    by_name = find_files(tiny, checkpoint="h3-tiny.safetensors")
    by_path = find_files(tiny, checkpoint=str(transformer_file(tiny)))

    assert by_stem.transformer == by_name.transformer == by_path.transformer


def test_two_transformers_ask_for_a_name_and_list_both(tiny: Path, tmp_path: Path) -> None:
    folder = link_all(tiny, tmp_path)
    (folder / "diffusion_models" / "second.safetensors").symlink_to(transformer_file(tiny))

    with pytest.raises(
        CheckpointAmbiguousError, match=r"several transformer files fit.*, second.*--checkpoint"
    ):
        find_files(folder)

    assert find_files(folder, checkpoint="second").name == "second"


def test_a_missing_file_says_which_places_were_looked_at(tiny: Path) -> None:
    with pytest.raises(CheckpointMissingError) as caught:
        find_files(tiny, video_vae="absent")

    assert caught.value.role == "video_vae"
    assert str(tiny / "vae" / "absent.safetensors") in str(caught.value)


def test_a_missing_models_folder_is_named_with_the_option_that_sets_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissingError, match=r"nowhere; this models folder .* does not exist"):
        find_files(tmp_path / "nowhere")
    with pytest.raises(CheckpointMissingError, match=r"diffusion_models; there is no such folder"):
        find_files(tmp_path)
    with pytest.raises(CheckpointMissingError, match=r"H3_MODELS_DIR"):
        find_files(None)


def test_what_is_no_model_file_is_said_to_be_that(tiny: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(CheckpointMissingError, match=r"\(--models-dir\) is no folder"):
        find_files(transformer_file(tiny))
    for name in ("/dev/zero", str(tmp_path / "pipe")):
        with pytest.raises(CheckpointFileError, match=f"{name}: is no regular file"):
            find_files(tiny, checkpoint=name)
    with pytest.raises(EmptyNameError, match="--checkpoint is empty"):
        find_files(tiny, checkpoint="")


def test_a_wrong_name_is_answered_with_the_names_that_are_there(tiny: Path, tmp_path: Path) -> None:
    folder = link_all(tiny, tmp_path)
    (folder / "diffusion_models" / "second.safetensors").symlink_to(transformer_file(tiny))
    write_set(folder / "h3_sets" / "night.json", name="night")

    with pytest.raises(CheckpointMissingError, match=r"h3-tiny, second; in h3_sets: night"):
        find_files(folder, checkpoint="h3-tinny")


def test_a_file_in_the_wrong_role_is_refused(tiny: Path) -> None:
    with pytest.raises(CheckpointFileError, match="holds no H3 video_vae"):
        find_files(tiny, video_vae=str(tiny / "vae" / "h3-tiny-audio-vae.safetensors"))


def test_a_truncated_file_that_is_the_only_candidate_is_reported_as_such(tiny: Path, tmp_path: Path) -> None:
    folder = link_all(tiny, tmp_path)
    path = transformer_file(folder)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1000])

    with pytest.raises(CheckpointFileError, match="truncated: 1,000 bytes"):
        find_files(folder)


def test_bytes_behind_the_last_tensor_are_told_and_ignored_as_a_published_file_has_65(
    tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = link_all(tiny, tmp_path)
    path = transformer_file(folder)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content + b"x" * 65)

    header = find_files(folder).transformer

    assert "65 bytes behind its last tensor are ignored" in caplog.text
    load_transformer(header, device=CPU, compute_dtype=torch.float32)


def damaged(tiny: Path, target: Path, damage: Damage) -> Path:
    save_file(damage(load_file(transformer_file(tiny))), target)
    return target


def test_missing_unexpected_and_misshapen_tensors_are_listed_together(tiny: Path, tmp_path: Path) -> None:
    def damage(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        del tensors["blocks.1.mlp.fc2.weight"]
        tensors["blocks.0.attn.to_gate.weight"] = torch.ones(2)
        tensors["final_layer.norm.weight"] = torch.ones(3)
        return tensors

    path = damaged(tiny, tmp_path / "bad.safetensors", damage)

    with pytest.raises(CheckpointMismatchError) as caught:
        load_transformer(read_header(path), device=CPU, compute_dtype=torch.float32)

    assert caught.value.missing == ["blocks.1.mlp.fc2.weight"]
    assert caught.value.unexpected == ["blocks.0.attn.to_gate.weight"]
    assert caught.value.wrong == ["final_layer.norm.weight: (3,) instead of (256,)"]


@pytest.mark.parametrize("prefix", ["model.diffusion_model.", "diffusion_model."])
def test_a_wrapper_prefix_is_taken_off(tiny: Path, tmp_path: Path, prefix: str) -> None:
    path = damaged(
        tiny, tmp_path / "wrapped.safetensors", lambda t: {prefix + name: value for name, value in t.items()}
    )

    wrapped = load_transformer(read_header(path), device=CPU, compute_dtype=torch.float32)

    plain = load_transformer(read_header(transformer_file(tiny)), device=CPU, compute_dtype=torch.float32)
    assert torch.equal(wrapped.condition_proj.weight, plain.condition_proj.weight)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
def test_bf16_fp16_and_fp32_files_load_into_the_compute_dtype_with_float32_islands(
    tiny: Path, tmp_path: Path, stored: torch.dtype
) -> None:
    path = damaged(
        tiny, tmp_path / "cast.safetensors", lambda t: {name: value.to(stored) for name, value in t.items()}
    )

    module = load_transformer(read_header(path), device=CPU, compute_dtype=torch.bfloat16)

    assert module.blocks[0].mlp.fc1.weight.dtype == torch.bfloat16
    assert module.video_patch_proj.weight.dtype == torch.float32
    assert module.blocks[0].adaln_proj.linear.weight.dtype == torch.float32  # pruned: AdaLN is an island


def test_the_full_layout_loads_from_its_shapes_alone(tmp_path: Path) -> None:
    full = replace(
        TINY,
        transformer=replace(
            TINY.transformer,
            time_table_rows=None,
            time_embed_dim=48,
            time_hidden_dim=32,
            time_freq_dim=16,
        ),
    )
    path = tmp_path / "full.safetensors"
    description = describe("dit_full_bf16", "tiny", dims={"B": 48, "TH": 32, "TI": 16})
    write_file(path, description, Values(description).bytes)

    module = load_transformer(read_header(path), device=CPU, compute_dtype=torch.bfloat16)

    assert module.config == full.transformer
    assert module.time_embedder.proj_in.weight.dtype == torch.float32
    assert module.blocks[0].adaln_proj.linear.weight.dtype == torch.bfloat16


def test_a_vae_file_without_statistics_gets_those_of_the_release(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "vae.safetensors"
    tensors = load_file(tiny / "vae" / "h3-tiny-video-vae.safetensors")
    save_file({name: value for name, value in tensors.items() if not name.startswith("latents_")}, path)

    module = load_video_decoder(read_header(path), device=CPU, dtype=torch.float32)

    assert module.latents_mean[0].item() == pytest.approx(0.858090341091156)


def test_a_stray_tensor_beside_the_vae_encoder_is_not_passed_over(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "vae.safetensors"
    tensors = load_file(tiny / "vae" / "h3-tiny-audio-vae.safetensors")
    save_file({**tensors, "decoder.extra.weight": torch.ones(1)}, path)

    with pytest.raises(CheckpointMismatchError, match=r"unexpected \(decoder.extra.weight\)"):
        load_audio_decoder(read_header(path), device=CPU)


ENCODERS: dict[str, Callable[[Any], Any]] = {
    "video": lambda header: load_video_encoder(header, device=CPU),
    "audio": lambda header: load_audio_encoder(header, device=CPU),
}


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_has_its_files_values_in_float32(tiny: Path, kind: str) -> None:
    path = tiny / "vae" / f"h3-tiny-{kind}-vae.safetensors"

    module = ENCODERS[kind](read_header(path))

    stored = load_file(path)
    assert not module.training
    for name, tensor in module.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, stored[name].float()), name


@pytest.mark.parametrize(
    ("kind", "faulty"),
    [
        ("video", ("encoder.down.3.downsample.conv.bias", "quant_conv.scale", "encoder.conv_out.weight")),
        ("audio", ("encoder.block.3.block.1.block.2.alpha", "pre_block.norm4.bias", "mean_proj.weight")),
    ],
)
def test_faults_of_an_encoder_are_listed_together(
    tiny: Path, tmp_path: Path, kind: str, faulty: tuple[str, str, str]
) -> None:
    missing, stray, misshapen = faulty
    path = tmp_path / "vae.safetensors"
    tensors = load_file(tiny / "vae" / f"h3-tiny-{kind}-vae.safetensors")
    del tensors[missing]
    save_file({**tensors, stray: torch.ones(1), misshapen: torch.ones(3)}, path)

    with pytest.raises(CheckpointMismatchError) as caught:
        ENCODERS[kind](read_header(path))

    assert (caught.value.missing, caught.value.unexpected) == ([missing], [stray])
    assert [text.split(":")[0] for text in caught.value.wrong] == [misshapen]


@pytest.mark.parametrize("kind", ENCODERS)
def test_a_file_of_a_decoder_alone_loads_until_a_job_needs_the_encoder(
    tiny: Path, tmp_path: Path, kind: str
) -> None:
    folder = link_all(tiny, tmp_path)
    path = folder / "vae" / f"h3-tiny-{kind}-vae.safetensors"
    tensors = load_file(path)
    path.unlink()
    decoder = ("decoder.", "post_quant_conv.", "dec_in_proj.", "latents_")
    save_file({name: tensor for name, tensor in tensors.items() if name.startswith(decoder)}, path)

    plans = check_files(find_files(folder), compute_dtype=torch.float32)

    header, other = read_header(path), {"video": plans.audio_encoder, "audio": plans.video_encoder}[kind]
    assert other is not None
    assert {"video": plans.video_encoder, "audio": plans.audio_encoder}[kind] is None
    with pytest.raises(
        EncoderMissingError, match=rf"encoder of the {kind} VAE, which .*{path.name} does not"
    ):
        require_encoder(ENCODERS[kind](header), f"{kind} VAE", header=header)
