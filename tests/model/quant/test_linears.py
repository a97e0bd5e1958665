"""The linears: what they compute, how far from the plain weight, and what a wrong reading would give."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.quant.exchange import exchange, make_linear
from model.quant.int8 import Int8Embedding
from model.quant.linear import QuantLinear, decoded
from model.quant.marker import Marker, QuantFormat, parse_marker
from model.quant.nvfp4 import swizzle, unswizzle
from model.synthetic.quantise import quantise

Measure = Callable[[Tensor, Tensor], float]
Damage = Callable[[dict[str, Tensor]], dict[str, Tensor]]
NVFP4 = '{"format": "nvfp4"}'
FP8 = '{"format": "float8_e4m3fn"}'
INT8 = '{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256}'
INT8_64 = '{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 64}'
INT4 = '{"format": "convrot_w4a4", "convrot_groupsize": 256}'
ROWS, COLUMNS = 256, 5376


@pytest.fixture(scope="module")
def weight() -> Tensor:
    """A normal weight as large as the released ones are wide."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(ROWS, COLUMNS, generator=generator) * 0.02).to(torch.bfloat16).float()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(64, COLUMNS, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)


def linear(text: str, tensors: dict[str, Tensor], *, bias: Tensor | None = None) -> QuantLinear:
    marker = parse_marker(text.encode(), name="m", source=Path("f"))
    stored = {suffix: tensor for suffix, tensor in tensors.items() if suffix != "comfy_quant"}
    return make_linear(marker, stored, shape=(ROWS, COLUMNS), bias=bias)


@pytest.mark.parametrize(
    ("text", "band"),
    [
        # Around what comfy-kitchen's reference gave on such data: 0.0951, 0.0268, 0.0088, 0.160.
        (NVFP4, (0.090, 0.100)),
        (FP8, (0.026, 0.028)),
        (INT8, (0.0083, 0.0093)),
        (INT8_64, (0.0078, 0.0093)),
        (INT4, (0.152, 0.168)),
    ],
)
def test_weights_and_outputs_have_the_error_of_their_format(
    weight: Tensor, x: Tensor, relative_l2: Measure, text: str, band: tuple[float, float]
) -> None:
    low, high = band
    quantised = linear(text, quantise(text, weight))

    assert low < relative_l2(quantised.dequantise(), weight) < high
    assert low < relative_l2(quantised(x.float()), x.double() @ weight.double().T) < high


@pytest.mark.parametrize("text", [NVFP4, FP8, INT8, INT4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_forward_multiplies_by_the_weight_rounded_once_to_the_inputs_dtype(
    weight: Tensor, x: Tensor, text: str, dtype: torch.dtype
) -> None:
    bias = torch.linspace(-1, 1, ROWS, dtype=dtype)
    quantised = linear(text, quantise(text, weight), bias=bias)

    y = quantised(x[:3].to(dtype))

    assert y.dtype == dtype
    assert torch.equal(y, F.linear(x[:3].to(dtype), quantised.dequantise().to(dtype), bias))


@pytest.mark.parametrize("text", [NVFP4, FP8, INT8, INT4])
def test_a_weight_is_decoded_once_for_several_products(weight: Tensor, x: Tensor, text: str) -> None:
    smooth = {"pre_quant_scale": torch.linspace(0.5, 2.0, COLUMNS)} if text == NVFP4 else {}
    holder = nn.Sequential(linear(text, quantise(text, weight, **smooth)))
    wanted, weight_scale = holder(x), holder[0].weight_scale

    with decoded(holder, x.dtype):
        weight_scale.fill_(0)

        assert torch.equal(holder(x), wanted)
    assert holder(x).count_nonzero() == 0


def test_the_awq_scale_multiplies_the_input_in_its_dtype(
    weight: Tensor, x: Tensor, relative_l2: Measure
) -> None:
    smooth = torch.linspace(0.5, 2.0, COLUMNS)
    tensors = quantise(NVFP4, weight, pre_quant_scale=smooth)
    quantised = linear(NVFP4, tensors)

    stored = tensors["pre_quant_scale"]
    merged = quantised.dequantise() * stored.float()
    assert relative_l2(quantised(x.float()), x.float() @ merged.T) < 1e-6
    assert 0.09 < relative_l2(merged, weight) < 0.11
    bf16 = F.linear(x * stored, quantised.dequantise().to(torch.bfloat16))
    assert torch.equal(quantised(x), bf16)


def nibbles_swapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    packed = tensors["weight"]
    return {**tensors, "weight": packed << 4 | packed >> 4}


def scales_plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    plain = unswizzle(tensors["weight_scale"].view(torch.uint8))
    return {**tensors, "weight_scale": plain.view(torch.float8_e4m3fn)}


def scales_swizzled_twice(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    twice = swizzle(tensors["weight_scale"].view(torch.uint8))
    return {**tensors, "weight_scale": twice.view(torch.float8_e4m3fn)}


def per_head_rows(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rows of q, k, v by heads of 32, in a matrix whose every row has a single scale: as a shape, equal."""
    order = torch.arange(ROWS).view(-1, 4, 32).transpose(0, 1).flatten()
    return {**tensors, "weight": tensors["weight"][order], "weight_scale": tensors["weight_scale"][order]}


def unsigned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a reader without signed bytes would make of the codes."""
    return {**tensors, "weight": tensors["weight"].view(torch.uint8)}


@pytest.mark.parametrize(
    ("text", "read_as", "damage"),
    [
        (NVFP4, NVFP4, nibbles_swapped),
        (NVFP4, NVFP4, scales_plain),
        (NVFP4, NVFP4, scales_swizzled_twice),
        (INT8, INT8, per_head_rows),
        (INT8, INT8, unsigned),
        (INT8, INT8_64, dict),
        (INT8, '{"format": "int8_tensorwise"}', dict),
        (INT4, INT4, nibbles_swapped),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_reading_of_equal_shapes_is_told_by_its_values(
    weight: Tensor, relative_l2: Measure, text: str, read_as: str, damage: Damage
) -> None:
    tensors = quantise(text, weight)

    good = relative_l2(linear(text, tensors).dequantise(), weight)
    twin = relative_l2(linear(read_as, damage(tensors)).dequantise(), weight)

    assert good < 0.17
    assert twin > max(0.3, 2 * good)


def test_a_linear_and_an_embedding_are_exchanged_by_name() -> None:
    module = nn.Sequential(nn.Embedding(40, 16), nn.Sequential(nn.Linear(16, 24)))
    table, weight, bias = module[0].weight.detach(), module[1][0].weight.detach(), module[1][0].bias.detach()
    int8 = Marker(format=QuantFormat.INT8)
    stored = [quantise(json.dumps({"format": "int8_tensorwise"}), tensor) for tensor in (table, weight)]

    for name, tensors in zip(("0", "1.0"), stored, strict=True):
        del tensors["comfy_quant"]
        exchange(module, name, int8, tensors, dtype=torch.bfloat16)

    assert isinstance(module[0], Int8Embedding)
    assert torch.equal(module[1][0].bias, bias)
    assert (module[1][0].in_features, module[1][0].out_features) == (16, 24)
    rows = module[0](torch.tensor([[1, 39]]))
    assert rows.dtype == torch.bfloat16
    assert torch.allclose(rows.float(), table[[1, 39]][None], atol=0.03)
    assert set(module.state_dict()) == {
        "0.weight",
        "0.weight_scale",
        "1.0.weight",
        "1.0.weight_scale",
        "1.0.bias",
    }


def test_what_no_format_can_hold_is_not_encoded() -> None:
    with pytest.raises(ValueError, match="NaN or infinity"):
        quantise(NVFP4, torch.tensor([[float("nan")]]))
    with pytest.raises(ValueError, match="groups of 256 columns do not divide 100"):
        quantise(INT8, torch.ones(2, 100))


@pytest.mark.parametrize("text", [NVFP4, FP8, INT8, INT4])
def test_a_weight_of_zeros_stays_one(text: str) -> None:
    assert not linear(text, quantise(text, torch.zeros(ROWS, COLUMNS))).dequantise().any()
