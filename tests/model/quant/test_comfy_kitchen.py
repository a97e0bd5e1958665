"""Agreement with comfy-kitchen, whose encoders wrote the published files, on tensors of awkward shapes.

Its plain PyTorch backend is asked, also where a GPU is at hand. Where both do the same float32 roundings the
results have to be equal; rotations add in another order there, hence 1e-6 for what passed one (measured:
2e-7) and one code in a thousand beside a tie.
"""

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor

from model.quant.fp8 import dequantise_fp8
from model.quant.int4 import dequantise_int4
from model.quant.int8 import Int8Embedding, dequantise_int8
from model.quant.marker import Marker, QuantFormat
from model.quant.nvfp4 import dequantise_nvfp4, swizzle, unswizzle
from model.synthetic.quantise import encode_fp8, encode_int4, encode_int8, encode_nvfp4

SHAPES = [(1, 1), (3, 16), (16, 65), (37, 100), (130, 48), (129, 1030), (300, 336)]
"""Rows off 16 and 128, columns off 16 and 64."""
ROTATED = [(1, 16, 16), (5, 192, 64), (130, 512, 256), (37, 1024, 1024), (64, 4, 4)]
RELATIVE = 1e-6


@pytest.fixture(scope="module")
def kitchen() -> Iterator[ModuleType]:
    import comfy_kitchen

    with comfy_kitchen.use_backend("eager"):
        yield comfy_kitchen


def draw(rows: int, columns: int, *, scale: float = 0.02, seed: int = 0) -> Tensor:
    """Normal values, one outlier, a row and a block of zeros, a minus zero."""
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * scale
    values[rows // 2] *= 0 if rows > 1 else 1
    values[0, :16] = -0.0 if columns > 16 else values[0, :16]
    values[-1, -1] = 40 * scale
    return values


@pytest.mark.parametrize("scale", [0.02, 1e-30, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_nvfp4_codes_scales_and_values_are_equal(
    kitchen: ModuleType, shape: tuple[int, int], dtype: torch.dtype, scale: float
) -> None:
    from comfy_kitchen.tensor import TensorCoreNVFP4Layout

    weight = draw(*shape, scale=scale).to(dtype)

    packed, scales, global_scale = encode_nvfp4(weight)

    their_packed, params = TensorCoreNVFP4Layout.quantize(weight)
    assert torch.equal(global_scale, params.scale)
    assert torch.equal(packed, their_packed)
    assert torch.equal(scales.view(torch.uint8), params.block_scale.view(torch.uint8))
    ours = dequantise_nvfp4(packed, scales, global_scale, shape=shape)
    theirs = kitchen.dequantize_nvfp4(their_packed, params.scale, params.block_scale, torch.float32)
    assert torch.equal(ours, theirs[: shape[0], : shape[1]])


@pytest.mark.parametrize("shape", [(128, 4), (256, 12), (384, 8)])
def test_scales_are_swizzled_as_cublas_wants_them(kitchen: ModuleType, shape: tuple[int, int]) -> None:
    plain = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))

    assert torch.equal(swizzle(plain).flatten(), kitchen.to_blocked(plain).flatten())
    assert torch.equal(unswizzle(swizzle(plain)), plain)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_codes_and_values_are_equal(
    kitchen: ModuleType, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight, scale = draw(*shape).to(dtype), torch.tensor(0.00123)

    codes = encode_fp8(weight, scale)

    theirs = kitchen.quantize_per_tensor_fp8(weight, scale)
    assert torch.equal(codes.view(torch.uint8), theirs.view(torch.uint8))
    assert torch.equal(
        dequantise_fp8(codes, scale), kitchen.dequantize_per_tensor_fp8(theirs, scale, torch.float32)
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_int8_codes_scales_and_values_are_equal_without_rotation(
    kitchen: ModuleType, shape: tuple[int, int]
) -> None:
    weight = draw(*shape)

    codes, scale = encode_int8(weight, group=None)

    their_codes, their_scale = kitchen.quantize_int8_rowwise(weight)
    assert torch.equal(codes, their_codes)
    assert torch.equal(scale, their_scale)
    assert torch.equal(
        dequantise_int8(codes, scale, group=None),
        kitchen.dequantize_int8_simple(codes, scale).reshape(shape),
    )


@pytest.mark.parametrize(("rows", "columns", "group"), ROTATED)
def test_int8_convrot_agrees(
    kitchen: ModuleType, relative_l2: Callable[[Tensor, Tensor], float], rows: int, columns: int, group: int
) -> None:
    from comfy_kitchen.tensor import TensorWiseINT8Layout

    weight = draw(rows, columns)

    codes, scale = encode_int8(weight, group=group)

    their_codes, params = TensorWiseINT8Layout.quantize(
        weight, per_channel=True, convrot=True, convrot_groupsize=group
    )
    agree_but_for_ties(codes, their_codes)
    assert relative_l2(scale, params.scale) < RELATIVE
    theirs = TensorWiseINT8Layout.dequantize(their_codes, params)
    assert relative_l2(dequantise_int8(their_codes, params.scale, group=group), theirs) < RELATIVE


@pytest.mark.parametrize(("rows", "columns", "group"), [(1, 64, 64), (37, 320, 64), (130, 512, 256)])
def test_int4_convrot_agrees(
    kitchen: ModuleType, relative_l2: Callable[[Tensor, Tensor], float], rows: int, columns: int, group: int
) -> None:
    weight = draw(rows, columns)

    packed, scale = encode_int4(weight, group=group)

    their_packed, their_scale = kitchen.quantize_convrot_w4a4_weight(weight, group)
    assert their_scale.shape == scale.shape
    assert relative_l2(scale, their_scale) < RELATIVE
    assert (packed != their_packed).float().mean() <= 1e-3
    theirs = kitchen.dequantize_convrot_w4a4_weight(their_packed, their_scale, group)
    assert relative_l2(dequantise_int4(their_packed, their_scale, group=group), theirs) < RELATIVE


@pytest.mark.parametrize("group", [None, 16])
def test_an_embedding_decodes_the_rows_asked_for(
    kitchen: ModuleType, relative_l2: Callable[[Tensor, Tensor], float], group: int | None
) -> None:
    from comfy_kitchen.tensor import TensorWiseINT8Layout

    codes, scale = encode_int8(draw(50, 48), group=group)
    ids = torch.tensor([[0, 49, 7], [7, 1, 0]])
    embedding = Int8Embedding(Marker(format=QuantFormat.INT8, group=group), weight=codes, weight_scale=scale)

    rows = embedding(ids)

    params = TensorWiseINT8Layout.Params(
        scale=scale,
        orig_dtype=torch.float32,
        orig_shape=(50, 48),
        convrot=group is not None,
        convrot_groupsize=group or 256,
    )
    assert rows.shape == (2, 3, 48)
    assert relative_l2(rows, TensorWiseINT8Layout.dequantize_embedding(codes, params, ids)) < RELATIVE


def agree_but_for_ties(ours: Tensor, theirs: Tensor) -> None:
    apart = (ours.short() - theirs.short()).abs()
    assert apart.max() <= 1
    assert apart.float().mean() <= 1e-3
