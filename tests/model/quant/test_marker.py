"""Markers: read as ComfyUI writes them, and refused by tensor and file as soon as anything is odd."""

import json
from pathlib import Path

import pytest

from model.errors import CheckpointFileError
from model.quant.marker import METADATA_KEY, Marker, QuantFormat, metadata_layers, parse_marker

FILE = Path("some.safetensors")
NAME = "blocks.0.attn.qkv_proj.comfy_quant"


def read(text: str | bytes) -> Marker:
    data = text.encode() if isinstance(text, str) else text
    return parse_marker(data, name=NAME, source=FILE)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"format": "nvfp4"}', Marker(format=QuantFormat.NVFP4)),
        (
            '{"format": "nvfp4", "full_precision_matrix_mult": true}',
            Marker(format=QuantFormat.NVFP4, full_precision=True),
        ),
        ('{"format": "float8_e4m3fn"}', Marker(format=QuantFormat.FP8)),
        ('{"format": "int8_tensorwise"}', Marker(format=QuantFormat.INT8)),
        (
            '{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 64}',
            Marker(format=QuantFormat.INT8, group=64),
        ),
        ('{"format": "int8_tensorwise", "convrot": true}', Marker(format=QuantFormat.INT8, group=256)),
        (
            '{"format": "int8_tensorwise", "params": {"convrot": true, "convrot_groupsize": 16}}',
            Marker(format=QuantFormat.INT8, group=16),
        ),
        (
            '{"format": "int8_tensorwise", "convrot": false, "convrot_groupsize": 7}',
            Marker(format=QuantFormat.INT8),
        ),
        ('{"format": "convrot_w4a4"}', Marker(format=QuantFormat.INT4, group=256)),
        (
            '{"format": "convrot_w4a4", "convrot_groupsize": 64, "linear_dtype": "int8", "group_size": 64}',
            Marker(format=QuantFormat.INT4, group=64),
        ),
        ('{"format": "nvfp4"}\0\0', Marker(format=QuantFormat.NVFP4)),
    ],
)
def test_a_marker_is_read_field_by_field(text: str, wanted: Marker) -> None:
    assert read(text) == wanted


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty.*fetch the file again"),
        (bytes(19), "is 19 bytes of zero, a hole"),
        (b'{"format": "nvf', "is no JSON text"),
        (b'{"format": "nvfp4\xff"}', "is no JSON text"),
        (b"[" * 4000, "is no JSON text"),
        (b'{"format": "nvfp4", "format": "nvfp4"}', "the same key stands twice"),
        (b'{"format": "nvfp4"' + b" " * 5000 + b"}", "has 5,019 bytes"),
        (b'["nvfp4"]', "is no JSON object"),
        (b'{"format": "nvfp4", "params": 3}', "is no JSON object"),
        (b'{"convrot": true}', "names no format"),
        (b'{"format": "nvfp5"}', "unknown format 'nvfp5'; known here are float8_e4m3fn, nvfp4"),
        (b'{"format": ["nvfp4"]}', "unknown format"),
        (b'{"format": "mxfp8"}', "names the format mxfp8, which is not decoded here"),
        (b'{"format": "nvfp4", "convrot": true}', "the field 'convrot', which nvfp4 weights do not have"),
        (b'{"format": "int8_tensorwise", "num_experts": 4}', "the field 'num_experts'"),
        (b'{"format": "int8_tensorwise", "convrot": 1}', "has convrot = 1, where bool is expected"),
        (b'{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 128}', "one of .4, 16, 64"),
        (b'{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": true}', "int is expected"),
        (b'{"format": "int8_tensorwise", "convrot": true, "params": {"convrot": false}}', "convrot twice"),
        (b'{"format": "convrot_w4a4", "convrot": false}', "is not rotated"),
    ],
)
def test_an_odd_marker_is_refused_by_tensor_and_file(data: bytes, reason: str) -> None:
    with pytest.raises(CheckpointFileError, match=reason) as caught:
        read(data)

    assert str(caught.value).startswith(f"{FILE}: marker {NAME} ")


def test_header_metadata_may_stand_for_the_markers() -> None:
    layers = {"blocks.0.mlp.fc1": {"format": "nvfp4"}}
    metadata = {METADATA_KEY: json.dumps({"format_version": "1.0", "layers": layers})}

    assert metadata_layers(metadata, source=FILE) == layers
    assert metadata_layers({"weights": "random"}, source=FILE) == {}
    for odd in ("{", "[]", '{"format_version": "2.0", "layers": {}}'):
        with pytest.raises(CheckpointFileError, match=METADATA_KEY):
            metadata_layers({METADATA_KEY: odd}, source=FILE)
