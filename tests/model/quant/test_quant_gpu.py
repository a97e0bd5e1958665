"""On a GPU every weight decodes to the bits that it has on the CPU, also with TF32 products allowed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.quant.exchange import make_linear
from model.quant.int8 import Int8Embedding
from model.quant.linear import QuantLinear
from model.quant.marker import parse_marker
from model.quant.rows import concat_rows
from model.synthetic.quantise import quantise

pytestmark = pytest.mark.gpu
SHAPE = (272, 1280)
MARKERS = [
    '{"format": "nvfp4"}',
    '{"format": "float8_e4m3fn"}',
    '{"format": "int8_tensorwise"}',
    '{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256}',
    '{"format": "convrot_w4a4", "convrot_groupsize": 256}',
]


@pytest.fixture(autouse=True)
def tf32_products() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def both(text: str) -> tuple[QuantLinear, QuantLinear]:
    """The same linear on the CPU and on the GPU."""
    weight = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    tensors = quantise(text, weight)
    del tensors["comfy_quant"]
    marker = parse_marker(text.encode(), name="m", source=Path("f"))
    return make_linear(marker, tensors, shape=SHAPE), make_linear(marker, tensors, shape=SHAPE).cuda()


@pytest.mark.parametrize("text", MARKERS)
def test_a_weight_has_the_same_bits(text: str) -> None:
    on_cpu, on_gpu = both(text)

    decoded = on_gpu.dequantise()

    assert decoded.is_cuda
    assert torch.equal(decoded.cpu(), on_cpu.dequantise())


@pytest.mark.parametrize("text", MARKERS)
def test_rows_are_fused_where_they_lie(text: str) -> None:
    on_cpu, on_gpu = both(text)
    stored = dict(on_gpu.named_buffers())

    fused = concat_rows(on_gpu.marker, [stored, stored], num_rows=(SHAPE[0], SHAPE[0]))

    linear = make_linear(on_gpu.marker, fused, shape=(2 * SHAPE[0], SHAPE[1]))
    assert torch.equal(linear.dequantise().cpu(), on_cpu.dequantise().repeat(2, 1))


@pytest.mark.parametrize("text", MARKERS)
def test_the_product_is_that_of_the_cpu(text: str, relative_l2: Callable[[Tensor, Tensor], float]) -> None:
    on_cpu, on_gpu = both(text)
    x = torch.randn(64, SHAPE[1], generator=torch.Generator().manual_seed(1), dtype=torch.bfloat16)

    y = on_gpu(x.cuda())

    assert y.dtype == torch.bfloat16
    assert relative_l2(y.cpu(), on_cpu(x.float())) < 0.006  # bf16 weights, sums and result


def test_an_embedding_decodes_the_rows_asked_for() -> None:
    text = json.dumps({"format": "int8_tensorwise"})
    tensors = quantise(text, torch.randn(50, 64, generator=torch.Generator().manual_seed(0)))
    marker = parse_marker(text.encode(), name="m", source=Path("f"))
    table = Int8Embedding(marker, weight=tensors["weight"], weight_scale=tensors["weight_scale"])
    ids = torch.tensor([[3, 49], [0, 3]])

    wanted = table(ids)

    assert torch.equal(table.cuda()(ids.cuda()).cpu(), wanted)
