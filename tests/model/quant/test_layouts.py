"""Other key layouts: whatever the order and split of rows in a file, the same weights find the same place."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from model.checkpoints.descriptions import describe
from model.checkpoints.header import read_header
from model.checkpoints.names import Layout
from model.dit import H3Transformer
from model.errors import CheckpointMismatchError
from model.loading.files import plays
from model.loading.models import load_transformer, load_video_decoder, load_video_encoder
from model.quant.linear import QuantLinear
from model.quant.marker import Marker, parse_marker
from model.quant.rows import take_rows
from model.synthetic.quantise import quantise
from model.synthetic.values import Values
from model.synthetic.writer import write_file

CPU = torch.device("cpu")
Rename = Callable[[str], str]
Modules = dict[str, dict[str, Tensor]]
VARIANTS = [
    "dit_full_int8_convrot", "dit_pruned_bf16", "dit_pruned_fp8_scaled", "dit_pruned_int8_convrot",
    "dit_pruned_int4_convrot", "dit_pruned_nvfp4",
]  # fmt: skip
HEADS, HEAD_DIM, FFN_DIM = 2, 128, 256


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def once(variant: str) -> Path:
        description = describe(variant, "tiny")
        path = tmp_path_factory.mktemp("tiny") / f"{variant}.safetensors"
        write_file(path, description, Values(description).bytes)
        return path

    return once


def by_module(path: Path) -> Modules:
    modules: Modules = {}
    for name, tensor in load_file(path).items():
        module, _, suffix = name.rpartition(".")
        modules.setdefault(module, {})[suffix] = tensor
    return modules


def save(modules: Mapping[str, Mapping[str, Tensor]], path: Path) -> Path:
    flat = {
        f"{module}.{suffix}" if module else suffix: t
        for module in modules
        for suffix, t in modules[module].items()
    }
    save_file({name: tensor.contiguous().clone() for name, tensor in flat.items()}, path)
    return path


def rows_of(stored: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """Take rows of a stored linear, whose marker says how."""
    stored = dict(stored)
    text = stored.pop("comfy_quant", None)
    taken = take_rows(None if text is None else marker_of(text), stored, rows)
    return taken if text is None else {**taken, "comfy_quant": text}


def marker_of(text: Tensor) -> Marker:
    return parse_marker(bytes(text.tolist()), name="m", source=Path("f"))


def in_diffusers(modules: Modules, rename: Rename) -> Modules:
    found: Modules = {}
    for module, stored in modules.items():
        theirs = rename(f"{module}.")[:-1] if module else module
        if module == "rope":
            continue
        if module.endswith("qkv_proj"):
            for letter, rows in zip("qkv", torch.arange(3 * HEADS * HEAD_DIM).chunk(3), strict=True):
                found[theirs.replace("qkv_proj", f"to_{letter}")] = rows_of(stored, rows)
        elif module.endswith("mlp.fc1"):
            found[theirs] = rows_of(stored, torch.arange(2 * FFN_DIM).roll(FFN_DIM))
        else:
            found[theirs] = stored
    return found


def in_original(modules: Modules) -> Modules:
    rows = torch.arange(3 * HEADS * HEAD_DIM).view(3, HEADS, HEAD_DIM).transpose(0, 1).flatten()
    return {
        module: rows_of(stored, rows) if module.endswith("qkv_proj") else stored
        for module, stored in modules.items()
    }


def load(path: Path, layout: Layout | None = None) -> H3Transformer:
    return load_transformer(read_header(path), device=CPU, compute_dtype=torch.float32, layout=layout)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Every decoded weight and every plain tensor by name."""
    found = {
        name: module.dequantise() for name, module in model.named_modules() if isinstance(module, QuantLinear)
    }
    plain = {name: t for name, t in model.state_dict().items() if name.rpartition(".")[0] not in found}
    return {**found, **plain}


def assert_equal(found: nn.Module, wanted: nn.Module) -> None:
    ours, theirs = weights(found), weights(wanted)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_transformer_in_diffusers_layout_is_the_same_one(
    variant: str, write: Callable[[str], Path], diffusers_name: Rename, tmp_path: Path
) -> None:
    path = write(variant)

    theirs = save(in_diffusers(by_module(path), diffusers_name), tmp_path / "diffusers.safetensors")

    assert plays("transformer", read_header(theirs))
    assert_equal(load(theirs), load(path))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_transformer_in_the_original_order_is_the_same_one_once_that_is_said(
    variant: str, write: Callable[[str], Path], tmp_path: Path
) -> None:
    path = write(variant)
    original = save(in_original(by_module(path)), tmp_path / "original.safetensors")

    assert_equal(load(original, "original"), load(path))
    untold, wanted = weights(load(original)), weights(load(path))
    apart = [name.removesuffix(".weight") for name in wanted if not torch.equal(untold[name], wanted[name])]
    assert {name.rpartition(".")[2] for name in apart} == {"qkv_proj"}  # it loads, and is wrong


@pytest.mark.parametrize("fields", ['{"format": "nvfp4"}', '{"format": "float8_e4m3fn"}'])
def test_q_k_and_v_keep_scales_of_their_own(
    fields: str, write: Callable[[str], Path], diffusers_name: Rename, tmp_path: Path
) -> None:
    plain = by_module(write("dit_pruned_bf16"))
    modules = in_diffusers(plain, diffusers_name)
    for module in [
        name for name in modules if name.startswith("transformer_blocks.") and ".attn.to_" in name
    ]:
        modules[module] = quantise(fields, modules[module]["weight"].float())

    found = load(save(modules, tmp_path / "a.safetensors"))

    linear = found.get_submodule("blocks.1.attn.qkv_proj")
    parts = [load_parts(modules[f"transformer_blocks.1.attn.to_{letter}"]) for letter in "qkv"]
    assert torch.equal(linear.dequantise(), torch.cat(parts))


def load_parts(stored: dict[str, Tensor]) -> Tensor:
    from model.quant.exchange import make_linear

    tensors = {suffix: tensor for suffix, tensor in stored.items() if suffix != "comfy_quant"}
    return make_linear(marker_of(stored["comfy_quant"]), tensors, shape=(256, 256)).dequantise()


def test_a_part_that_is_missing_or_stored_otherwise_is_told_by_its_name(
    write: Callable[[str], Path], diffusers_name: Rename, tmp_path: Path
) -> None:
    modules = in_diffusers(by_module(write("dit_pruned_bf16")), diffusers_name)
    del modules["transformer_blocks.0.attn.to_k"]
    value = modules["transformer_blocks.1.attn.to_v"]["weight"]
    modules["transformer_blocks.1.attn.to_v"] = quantise('{"format": "float8_e4m3fn"}', value.float())

    with pytest.raises(CheckpointMismatchError) as caught:
        load(save(modules, tmp_path / "a.safetensors"))

    assert caught.value.missing == ["transformer_blocks.0.attn.to_k.weight"]
    assert any("transformer_blocks.1.attn.to_v: stored otherwise" in text for text in caught.value.wrong)


def test_a_video_vae_in_diffusers_layout_is_the_same_one(
    write: Callable[[str], Path], tmp_path: Path
) -> None:
    path = write("vae_video_fp16")
    modules: Modules = {}
    for module, stored in by_module(path).items():
        theirs = module.replace("x_embedder", "proj_in").replace("attn.to_out", "attn.to_out.0")
        theirs = theirs.replace("ff.w1", "ff.net.0.proj").replace("ff.w2", "ff.net.2")
        theirs = theirs.replace("encoder.down.", "encoder.down_blocks.").replace(".block.", ".resnets.")
        theirs = theirs.replace("nin_shortcut", "conv_shortcut").replace("downsample.", "downsamplers.0.")
        rows = torch.arange(stored["weight"].shape[0]) if "weight" in stored else torch.arange(0)
        if module.endswith("to_qkv"):
            for index, letter in enumerate("qkv"):
                heads = rows.view(-1, 3, 64)[:, index].flatten()
                modules[theirs.replace("to_qkv", f"to_{letter}")] = take_rows(None, stored, heads)
        elif module.endswith("ff.w1"):
            modules[theirs] = take_rows(None, stored, rows.roll(len(rows) // 2))
        else:
            modules[theirs] = stored

    header = read_header(save(modules, tmp_path / "vae.safetensors"))

    found, encoder = (
        load_video_decoder(header, device=CPU, dtype=torch.float32),
        load_video_encoder(header, device=CPU),
    )
    own = load_video_encoder(read_header(path), device=CPU)
    assert_equal(found, load_video_decoder(read_header(path), device=CPU, dtype=torch.float32))
    assert encoder is not None
    assert own is not None
    assert_equal(encoder, own)
