"""Safetensors headers: what is read, and everything that is refused before it is believed."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from model.checkpoints.header import read_header
from model.errors import CheckpointFileError


def write(path: Path, document: Any, payload: bytes = b"", *, length: int | None = None) -> Path:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + payload)
    return path


def entry(dtype: str = "F32", shape: list[Any] | None = None, begin: Any = 0, end: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [2] if shape is None else shape, "data_offsets": [begin, end]}


def test_a_header_of_the_reference_library_is_read_with_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"w": torch.ones(2, 3), "n": torch.ones(4, dtype=torch.bfloat16)}, path, metadata={"k": "v"})

    header = read_header(path)

    assert header.shapes == {"w": (2, 3), "n": (4,)}
    assert header.tensors["n"].dtype == "BF16"
    assert header.metadata == {"k": "v"}
    assert header.size_bytes == path.stat().st_size
    assert len(header.sha256) == 64


def test_65_bytes_behind_the_last_tensor_are_tolerated_as_a_published_file_has_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"w": entry()}, b"\0" * 8 + b"x" * 65)

    assert read_header(path).shapes == {"w": (2,)}


MALFORMED = {
    "empty": (b"", "too short"),
    "seven bytes": (b"\0" * 7, "too short"),
    "zero length": (struct.pack("<Q", 0), "too short"),
    "length beyond the file": (struct.pack("<Q", 2**63) + b"{}", "truncated or foreign"),
    "length of the whole file": (struct.pack("<Q", 10) + b"{}", "truncated or foreign"),
    "array": (struct.pack("<Q", 2) + b"[]", "does not start with"),
    "bad utf-8": (struct.pack("<Q", 3) + b"{\xff}", "not valid JSON"),
    "nul padding": (struct.pack("<Q", 4) + b"{}\0\0", "not valid JSON"),
    "zip": (b"PK\x03\x04" + b"\0" * 40, "zip archive"),
    "pickle": (b"\x80\x02" + b"\0" * 40, "pickle"),
    "gguf": (b"GGUF" + b"\0" * 40, "GGUF"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "html": (b"<!DOCTYPE html><html></html>", "saved web page"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_foreign_or_truncated_file_is_named_for_what_it_is(tmp_path: Path, name: str) -> None:
    content, reason = MALFORMED[name]
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)

    with pytest.raises(CheckpointFileError, match=reason) as caught:
        read_header(path)

    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"w": entry(end=9)}, "needs 8 bytes"),
        ({"w": entry(begin=8, end=0)}, "needs 8 bytes"),
        ({"w": entry(begin=4, end=12)}, "gap before|missing"),
        ({"w": entry(), "v": entry(begin=4, end=12)}, "gap or overlap|missing"),
        ({"w": entry(shape=[2**32, 2**32])}, "needs"),
        ({"w": entry(shape=[-2])}, "malformed"),
        ({"w": entry(shape=[2.0])}, "malformed"),
        ({"w": entry(shape=[True])}, "malformed"),
        ({"w": entry(dtype="f32")}, "unknown dtype 'f32'"),
        ({"w": {**entry(), "more": 1}}, "lacks dtype"),
        ({"w": entry(shape=[16], end=64)}, "truncated: 56 bytes"),
        ({"__metadata__": {"a": 1}}, "strings to strings"),
        (b'{"w":{},"w":{}}', "stands twice"),
    ],
)
def test_a_header_that_does_not_account_for_every_byte_is_refused(
    tmp_path: Path, document: Any, reason: str
) -> None:
    path = write(tmp_path / "a.safetensors", document, b"\0" * 8)

    with pytest.raises(CheckpointFileError, match=reason):
        read_header(path)


def test_a_folder_named_like_a_checkpoint_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a.safetensors"
    folder.mkdir()

    with pytest.raises(CheckpointFileError, match="no regular file"):
        read_header(folder)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_header_is_read_or_refused_but_never_breaks(tmp_path: Path, data: st.DataObject) -> None:
    path = write(tmp_path / "a.safetensors", {"w": entry(), "v": entry(begin=8, end=16)}, b"\0" * 16)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])

    try:
        header = read_header(path)
    except CheckpointFileError:
        return

    assert all(len(item.shape) <= 8 for item in header.tensors.values())
