"""A branch beside a linear: exact beside quantised weights, in bfloat16, and as a whole difference."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lora_numbers import FULL, comfyui, draw_lora, load, make_transformer
from safetensors.torch import save_file
from torch import Tensor, nn

from model.dit import H3Transformer
from model.lora.branch import Active, Branch, LoraLinear
from model.quant.exchange import exchange
from model.quant.linear import QuantLinear
from model.quant.marker import parse_marker
from model.synthetic.quantise import quantise
from queue_schemas.loras import JobLora

Velocity = Callable[[H3Transformer], Tensor]
Measure = Callable[[Tensor, Tensor], float]
FORMATS = {
    "nvfp4": '{"format": "nvfp4"}',
    "fp8": '{"format": "float8_e4m3fn"}',
    "int8": '{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 16}',
    "int4": '{"format": "convrot_w4a4", "convrot_groupsize": 16}',
}


def quantised(transformer: H3Transformer, text: str) -> H3Transformer:
    """Store the four matrices of each block in a format, as the published files do."""
    marker = parse_marker(text.encode(), name="m", source=Path("f"))
    for i in range(transformer.config.num_layers):
        for name in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2"):
            module = f"blocks.{i}.{name}"
            stored = quantise(text, transformer.get_submodule(module).weight)
            stored.pop("comfy_quant", None)
            exchange(transformer, module, marker, stored, dtype=torch.float32)
    return transformer


@pytest.mark.parametrize("text", FORMATS.values(), ids=FORMATS)
def test_beside_quantised_weights_nothing_but_the_delta_is_added(
    text: str, velocity: Velocity, relative_l2: Measure, tmp_path: Path
) -> None:
    lora = draw_lora(FULL, seed=2)
    transformer, plain = quantised(make_transformer(), text), make_transformer()
    for name, module in transformer.named_modules():
        if isinstance(module, QuantLinear):
            plain.get_submodule(name).weight.copy_(module.dequantise())
    for name in lora.pairs:
        plain.get_submodule(name).weight += 0.8 * lora.delta(name)

    loras = load(transformer, lora.write(tmp_path / "x.safetensors", "comfyui"))
    loras.use([JobLora(name="x", strength=0.8)])

    assert relative_l2(velocity(transformer), velocity(plain)) < 1e-6


def test_in_bfloat16_the_sum_is_rounded_once_more_than_that_of_merged_weights(relative_l2: Measure) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(32, 256, generator=generator), torch.randn(128, 256, generator=generator) / 16
    down, up = torch.randn(8, 256, generator=generator) / 16, torch.randn(128, 8, generator=generator)
    base = nn.Linear(256, 128, bias=False, dtype=torch.bfloat16)
    base.requires_grad_(False).weight.copy_(weight)
    x, active = x.bfloat16(), Active(((0, 0.5),))
    linear = LoraLinear(base, active)
    linear.branches["0"] = Branch(down=down, up=up, bias=None, scale=0.25).to(torch.bfloat16)

    exact = x.double() @ (base.weight.double() + 0.125 * up.bfloat16().double() @ down.bfloat16().double()).T

    assert linear(x).dtype is torch.bfloat16
    # One rounding is 0.0017; base output, inner product and sum are rounded one after the other.
    assert relative_l2(linear(x), exact) < 0.003


def test_a_linear_is_called_with_any_leading_axes() -> None:
    linear = LoraLinear(nn.Linear(6, 4).requires_grad_(False), Active(((0, 2.0),)))
    linear.branches["0"] = Branch(down=torch.ones(1, 6), up=torch.ones(4, 1), bias=None, scale=1.0)
    x = torch.randn(3, 2, 6)

    assert torch.allclose(linear(x) - linear.base(x), 2 * x.sum(-1, keepdim=True).expand(3, 2, 4), atol=1e-5)
    assert linear(x[0, 0]).shape == (4,)


@pytest.mark.parametrize(
    ("prefix", "swapped"),
    [("diffusion_model.blocks.0.mlp.fc1", False), ("transformer_blocks.0.ff.net.0.proj", True)],
)
def test_whole_differences_of_weight_and_bias_are_added_in_our_row_order(
    prefix: str, swapped: bool, velocity: Velocity, relative_l2: Measure, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(3)
    diff = torch.randn(192, 64, generator=generator) / 8
    bias = torch.randn(192, generator=generator)
    order = torch.arange(192).roll(96) if swapped else torch.arange(192)
    own = comfyui(draw_lora(FULL, seed=2), prefix="")
    tensors = {name: own[name] for name in own if name.startswith("blocks.1.attn.out_proj")}
    tensors |= {f"{prefix}.diff": diff[order], f"{prefix}.diff_b": bias[order]}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "x.safetensors")
    merged, transformer = make_transformer(), make_transformer()
    merged.blocks[1].attn.out_proj.weight += draw_lora(FULL, seed=2).delta("blocks.1.attn.out_proj") * 0.5
    fc1 = merged.blocks[0].mlp.fc1
    fc1.weight += 0.5 * diff
    fc1.bias = nn.Parameter(0.5 * bias, requires_grad=False)

    load(transformer, tmp_path / "x.safetensors").use([JobLora(name="x", strength=0.5)])

    assert relative_l2(velocity(transformer), velocity(merged)) < 1e-6
