"""Rows in another order, or several weights fused: what is decoded afterwards is what was decoded before."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.quant.exchange import make_linear
from model.quant.marker import Marker, parse_marker
from model.quant.rows import concat_rows, take_rows
from model.quant.storage import stored_tensors
from model.synthetic.quantise import quantise

MARKERS = [
    {"format": "nvfp4"},
    {"format": "float8_e4m3fn"},
    {"format": "int8_tensorwise"},
    {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 16},
    {"format": "convrot_w4a4", "convrot_groupsize": 16},
]
COLUMNS = 80


def stored(fields: dict[str, object], weight: Tensor) -> tuple[Marker, dict[str, Tensor]]:
    text = json.dumps(fields)
    tensors = quantise(text, weight)
    marker = parse_marker(bytes(tensors.pop("comfy_quant").tolist()), name="m", source=Path(__file__))
    return marker, tensors


def decoded(marker: Marker, tensors: dict[str, Tensor], rows: int) -> Tensor:
    return make_linear(marker, tensors, shape=(rows, COLUMNS)).dequantise()


def draw(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(seed)) * 0.1 * (1 + seed)


@pytest.mark.parametrize("fields", MARKERS, ids=json.dumps)
def test_rows_are_taken_in_any_order(fields: dict[str, object]) -> None:
    marker, tensors = stored(fields, draw(150, 0))
    rows = torch.randperm(150, generator=torch.Generator().manual_seed(1))[:70]

    taken = take_rows(marker, tensors, rows)

    assert torch.equal(decoded(marker, taken, 70), decoded(marker, tensors, 150)[rows])
    forms = stored_tensors(marker, shape=(70, COLUMNS))
    assert all(tuple(tensor.shape) in forms[suffix].shapes for suffix, tensor in taken.items())


@pytest.mark.parametrize("fields", MARKERS, ids=json.dumps)
def test_weights_with_scales_of_their_own_are_fused(fields: dict[str, object]) -> None:
    counts = (130, 40, 7)
    parts = [stored(fields, draw(count, seed)) for seed, count in enumerate(counts)]
    marker = parts[0][0]

    fused = concat_rows(marker, [tensors for _, tensors in parts], num_rows=counts)

    wanted = [decoded(marker, tensors, count) for (_, tensors), count in zip(parts, counts, strict=True)]
    assert torch.equal(decoded(marker, fused, sum(counts)), torch.cat(wanted))


def test_equal_single_scales_stay_single() -> None:
    marker, tensors = stored({"format": "nvfp4"}, draw(32, 0))

    fused = concat_rows(marker, [tensors, tensors], num_rows=(32, 32))

    assert fused["weight_scale_2"].shape == ()
    assert torch.equal(decoded(marker, fused, 64), decoded(marker, tensors, 32).repeat(2, 1))


def test_a_plain_weight_moves_with_its_bias() -> None:
    plain = {"weight": draw(4, 0), "bias": torch.arange(4.0)}

    taken = take_rows(None, plain, torch.tensor([3, 0]))
    fused = concat_rows(None, [taken, taken], num_rows=(2, 2))

    assert taken["bias"].tolist() == [3.0, 0.0]
    assert torch.equal(fused["weight"], plain["weight"][[3, 0, 3, 0]])


def test_the_largest_input_scale_is_kept_and_unlike_parts_are_refused() -> None:
    one, two = ({"weight": draw(2, 0), "input_scale": torch.tensor(value)} for value in (1.0, 2.0))
    smooth = [
        {"weight": draw(2, 0), "pre_quant_scale": torch.full((COLUMNS,), value)} for value in (1.0, 2.0)
    ]

    assert concat_rows(None, [one, two], num_rows=(2, 2))["input_scale"] == 2.0
    with pytest.raises(ValueError, match="not consist of the same tensors"):
        concat_rows(None, [one, {"weight": draw(2, 0)}], num_rows=(2, 2))
    with pytest.raises(ValueError, match="scale their input differently"):
        concat_rows(None, smooth, num_rows=(2, 2))
