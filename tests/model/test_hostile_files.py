"""Model files that nobody should have made: each ends in one sentence, at once, its payload unread."""

import json
import math
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.audio_vae.checkpoint import SIZING as AUDIO_SIZING
from model.checkpoints.header import read_header
from model.config import H3Config
from model.dit import H3Transformer
from model.dit.checkpoint import SIZING as TRANSFORMER_SIZING
from model.errors import CheckpointFileError, CheckpointMismatchError
from model.loading.files import ResidentFiles, find_files
from model.loading.models import (
    load_audio_decoder,
    load_audio_encoder,
    load_text_encoder,
    load_transformer,
    load_video_decoder,
    load_video_encoder,
)
from model.loading.plans import (
    check_files,
    check_fit,
    plan_audio_decoder,
    plan_audio_encoder,
    plan_text_encoder,
    plan_transformer,
    plan_video_decoder,
    plan_video_encoder,
)
from model.rotary import inverse_frequencies
from model.shapes import DIM_MAX, LAYERS_MAX
from model.text_encoder.layout import SIZING as TEXT_SIZING
from model.video_vae.checkpoint import SIZING as VIDEO_SIZING
from queue_schemas.errors import EXIT_REFUSED

CPU = torch.device("cpu")
Shape = tuple[int, ...]
PLANS: dict[str, Callable[..., object]] = {
    "transformer": lambda header: plan_transformer(header, compute_dtype=torch.float32).module.config,
    "text_encoder": lambda header: plan_text_encoder(header).config,
    "video_vae": lambda header: (plan_video_decoder(header).module.config, plan_video_encoder(header))[0],
    "audio_vae": lambda header: (plan_audio_decoder(header).module.config, plan_audio_encoder(header))[0],
}
SIZING = {
    "transformer": [
        *TRANSFORMER_SIZING,
        "adaln_t_table",
        "rope.inv_freq",
        "audio_patch_proj.weight",
        "final_layer.video_out.weight",
        "token_refiner.blocks.0.norm1.weight",
    ],
    "text_encoder": [*TEXT_SIZING, "visual.merger.linear_fc2.weight"],
    "video_vae": [
        *VIDEO_SIZING,
        "decoder.register_tokens",
        "post_quant_conv.weight",
        "latents_std",
        "encoder.down.0.block.0.conv1.weight",
        "encoder.down.0.block.1.conv1.weight",
        "quant_conv.weight",
    ],
    "audio_vae": [
        *AUDIO_SIZING,
        "latents_mean",
        "encoder.block.0.weight",
        "encoder.block.5.block.4.weight",
        "pre_block.attn.qkv.weight",
    ],
}
"""Every tensor from which a size is read, and some whose shape is fixed."""
FREE = {
    # More rows than tokens are never looked at; the tokenizer is held against fewer.
    ("model.embed_tokens.weight", 0): range(1, DIM_MAX + 1),
    # The release has 1,025 rows; others exist.
    ("adaln_t_table", 0): range(17, 4097),
    # Positions of pictures make a square; of what size, no other tensor tells.
    ("visual.pos_embed.weight", 0): [side**2 for side in range(1, 1025)],
}
"""Dimensions that a file may choose alone, and within what."""


@pytest.fixture(scope="module")
def files(tiny: Path) -> ResidentFiles:
    return find_files(tiny)


@pytest.fixture(scope="module")
def config(files: ResidentFiles) -> H3Config:
    return check_files(files, compute_dtype=torch.float32).config


def write_shapes(path: Path, shapes: dict[str, Shape]) -> Path:
    """A bf16 file of these shapes whose payload is a hole: it takes no room, and reading it would show."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return path


def other_shapes(name: str, shape: Shape) -> Iterator[Shape]:
    """Wrong numbers of dimensions, and in each dimension zero, one, one off, double and huge."""
    yield from ((), shape[:-1], shape[1:], (*shape, 1), (1, *shape), shape[::-1])
    for axis, size in enumerate(shape):
        more = () if len(shape) > 2 else (1, 2 * size, 2**26)  # convolutions have sizes enough
        for other in (0, size - 1, size + 1, DIM_MAX, *more):
            changed = (*shape[:axis], other, *shape[axis + 1 :])
            if other not in FREE.get((name, axis), ()):
                yield changed
    if len(shape) > 1:
        yield (2**30, 0, *shape[2:])


def fuzzed() -> Iterator[object]:
    """Each role and tensor; all but one of the audio VAE's are slow, since its thousand modules are."""
    for role, names in SIZING.items():
        for number, name in enumerate(names):
            slow = role == "audio_vae" and number > 0
            yield pytest.param(role, name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("role", "name"), list(fuzzed()))
def test_no_shape_but_the_right_one_gets_past_the_header(
    files: ResidentFiles, config: H3Config, tmp_path: Path, role: str, name: str
) -> None:
    right = getattr(files, role).shapes
    accepted, refusals = [], []

    for shape in other_shapes(name, right[name]):
        if shape == right[name]:
            continue
        path = write_shapes(tmp_path / "a.safetensors", {**right, name: shape})
        header = read_header(path)
        try:
            check_fit(replace(config, **{role: PLANS[role](header)}), replace(files, **{role: header}))
            accepted.append(shape)
        except (CheckpointFileError, CheckpointMismatchError) as error:
            refusals.append(error)

    assert accepted == []
    assert max(len(str(error)) for error in refusals) < 2_000
    assert {error.code.exit_code for error in refusals} == {EXIT_REFUSED}


COUNTED = [
    ("transformer", "blocks.{}.norm1.weight"),
    ("transformer", "token_refiner.blocks.{}.norm1.weight"),
    ("text_encoder", "model.layers.{}.input_layernorm.weight"),
    ("text_encoder", "visual.blocks.{}.norm1.weight"),
    ("text_encoder", "visual.deepstack_merger_list.{}.norm.weight"),
    ("video_vae", "decoder.transformer_blocks.{}.scale1"),
    ("video_vae", "encoder.down.{}.block.0.conv1.weight"),
    ("video_vae", "encoder.down.0.block.{}.conv1.weight"),
    ("audio_vae", "decoder.ups.{}.0.weight"),
    ("audio_vae", "encoder.block.{}.block.4.weight"),
]
"""What is counted."""


@pytest.mark.parametrize(("role", "counted"), COUNTED)
@pytest.mark.parametrize("number", [str(LAYERS_MAX), "1000000000", "9" * 4000], ids=len)
def test_a_layer_with_a_number_past_a_gap_is_named_and_nothing_is_built_up_to_it(
    files: ResidentFiles, tmp_path: Path, role: str, counted: str, number: str
) -> None:
    name = counted.format(number)
    path = write_shapes(tmp_path / "a.safetensors", {**getattr(files, role).shapes, name: (0,)})

    with pytest.raises(CheckpointMismatchError, match="1 unexpected") as caught:
        PLANS[role](read_header(path))

    assert caught.value.unexpected == [name]
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(("role", "counted"), COUNTED)
def test_a_stack_deeper_than_any_model_is_refused_before_it_is_built(
    files: ResidentFiles, tmp_path: Path, role: str, counted: str
) -> None:
    shapes = getattr(files, role).shapes
    first = next(shapes[name] for name in map(counted.format, range(2)) if name in shapes)
    deep = {counted.format(index): first for index in range(15_000)}
    header = read_header(write_shapes(tmp_path / "a.safetensors", {**shapes, **deep}))
    begin = time.monotonic()

    with pytest.raises(CheckpointMismatchError, match="more than 256 layers"):
        PLANS[role](header)

    assert time.monotonic() - begin < 1.0


def change(source: Path, target: Path, name: str, edit: Callable[[Tensor], object]) -> Path:
    """A copy of a file with one tensor edited in place."""
    tensors = load_file(source)
    edit(tensors[name])
    save_file(tensors, target)
    return target


LOADS: dict[str, Callable[..., object]] = {
    "transformer": lambda header: load_transformer(header, device=CPU, compute_dtype=torch.float32),
    "text_encoder": lambda header: load_text_encoder(header, device=CPU, dtype=torch.float32),
    "video_vae": lambda header: (
        load_video_decoder(header, device=CPU, dtype=torch.float16),
        load_video_encoder(header, device=CPU),
    ),
    "audio_vae": lambda header: (
        load_audio_decoder(header, device=CPU),
        load_audio_encoder(header, device=CPU),
    ),
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("role", "name"),
    [
        ("transformer", "blocks.1.mlp.fc2.weight"),
        ("transformer", "adaln_t_table"),
        ("text_encoder", "visual.merger.norm.bias"),
        ("video_vae", "decoder.proj_out.bias"),
        ("video_vae", "encoder.norm_out.bias"),
        ("audio_vae", "decoder.resblocks.20.activations.5.act.beta"),
        ("audio_vae", "pre_block.attn.q_bias"),
    ],
)
def test_a_value_that_is_not_finite_is_refused_by_the_name_of_its_tensor(
    files: ResidentFiles, tmp_path: Path, role: str, name: str, value: float
) -> None:
    path = change(
        getattr(files, role).path, tmp_path / "a.safetensors", name, lambda t: t.view(-1)[-1:].fill_(value)
    )

    with pytest.raises(CheckpointFileError, match=f"tensor '{name}' holds values that are not finite"):
        LOADS[role](read_header(path))


def test_a_value_that_the_computing_dtype_cannot_hold_is_refused(
    files: ResidentFiles, tmp_path: Path
) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {name: tensor.float() for name, tensor in load_file(files.video_vae.path).items()}
    tensors["decoder.proj_out.bias"][0] = 70_000.0
    save_file(tensors, path)

    with pytest.raises(CheckpointFileError, match=r"proj_out\.bias' .* not finite in torch\.float16"):
        load_video_decoder(read_header(path), device=CPU, dtype=torch.float16)
    load_video_decoder(read_header(path), device=CPU, dtype=torch.float32)


def test_a_download_that_left_a_hole_is_refused(files: ResidentFiles, tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "a.safetensors", files.transformer.shapes)

    with pytest.raises(
        CheckpointFileError, match=r"13 tensors .* were never written|holds nothing but zeros"
    ):
        load_transformer(read_header(path), device=CPU, compute_dtype=torch.float32)


@pytest.mark.parametrize(
    ("role", "name", "edit"),
    [
        ("transformer", "rope.inv_freq", lambda t: t.fill_(1.0)),
        ("transformer", "rope.inv_freq", lambda t: t[-1:].mul_(1.05)),
        ("transformer", "rope.inv_freq", lambda t: t.copy_(t.flip(0))),
        ("audio_vae", "decoder.activation_post.upsample.filter", lambda t: t.mul_(2.0)),
        ("audio_vae", "decoder.resblocks.0.activations.0.downsample.lowpass.filter", lambda t: t.zero_()),
        ("audio_vae", "pre_block.attn.zero_k_bias", lambda t: t[-1:].fill_(0.01)),
        ("audio_vae", "latents_std", lambda t: t[:1].zero_()),
        ("video_vae", "latents_std", lambda t: t[-1:].neg_()),
    ],
)
def test_constants_with_other_values_are_refused(
    files: ResidentFiles, tmp_path: Path, role: str, name: str, edit: Callable[[Tensor], object]
) -> None:
    path = change(getattr(files, role).path, tmp_path / "a.safetensors", name, edit)

    with pytest.raises(CheckpointMismatchError, match=name):
        LOADS[role](read_header(path))


def test_rounded_frequencies_are_replaced_by_the_exact_ones(files: ResidentFiles, tmp_path: Path) -> None:
    path = tmp_path / "bf16.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(files.transformer.path).items()}, path)

    module = load_transformer(read_header(path), device=CPU, compute_dtype=torch.float32)

    assert torch.equal(module.rope.inv_freq, inverse_frequencies(16, 10_000.0))


@pytest.mark.parametrize("rows", [16, 17, 4096, 4097])
def test_a_time_table_has_17_to_4096_rows(files: ResidentFiles, tmp_path: Path, rows: int) -> None:
    shapes = {
        **files.transformer.shapes,
        "adaln_t_table": (rows, files.transformer.shapes["adaln_t_table"][1]),
    }
    header = read_header(write_shapes(tmp_path / "a.safetensors", shapes))

    if rows in (17, 4096):
        assert plan_transformer(header, compute_dtype=torch.float32).module.config.time_table_rows == rows
        return
    with pytest.raises(CheckpointMismatchError, match=rf"adaln_t_table: {rows} rows instead of 17 to 4,096"):
        plan_transformer(header, compute_dtype=torch.float32)


@pytest.mark.parametrize("columns", [0, 1, 15, 255, 2**20 + 2])
def test_a_time_embedder_of_the_full_layout_has_cosines_and_sines(
    config: H3Config, tmp_path: Path, columns: int
) -> None:
    full = replace(config.transformer, time_table_rows=None, time_embed_dim=48, time_freq_dim=16)
    with torch.device("meta"):
        shapes = {name: tuple(t.shape) for name, t in H3Transformer(full).state_dict().items()}
    hidden = shapes["time_embedder.proj_in.weight"][0]
    header = read_header(
        write_shapes(
            tmp_path / "a.safetensors", {**shapes, "time_embedder.proj_in.weight": (hidden, columns)}
        )
    )

    with pytest.raises(CheckpointMismatchError, match=r"time_embedder\.proj_in\.weight: "):
        plan_transformer(header, compute_dtype=torch.float32)


def test_the_last_file_is_checked_before_the_first_is_read(files: ResidentFiles, tmp_path: Path) -> None:
    hole = write_shapes(tmp_path / "hole.safetensors", files.text_encoder.shapes)  # refused if it were read
    stranger = write_shapes(tmp_path / "odd.safetensors", {**files.audio_vae.shapes, "latents_std": (31,)})
    mixed = replace(files, text_encoder=read_header(hole), audio_vae=read_header(stranger))

    with pytest.raises(CheckpointMismatchError, match=r"odd\.safetensors.*latents_std: \(31,\)"):
        check_files(mixed, compute_dtype=torch.float32)


def test_a_transformer_of_another_text_width_is_refused_with_both_widths(
    files: ResidentFiles, tmp_path: Path
) -> None:
    width = files.text_encoder.shapes["model.embed_tokens.weight"][1]
    shapes = {
        **files.transformer.shapes,
        "condition_proj.weight": (files.transformer.shapes["condition_proj.bias"][0], 640),
    }
    header = read_header(write_shapes(tmp_path / "wide.safetensors", shapes))

    with pytest.raises(CheckpointMismatchError, match=rf"features 640 wide, and .*qwen3vl.* gives {width}"):
        check_files(replace(files, transformer=header), compute_dtype=torch.float32)
