"""Safetensors headers: what is read, and everything that is refused before it is believed."""

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from model.checkpoints.header import HEADER_BYTES_MAX, OpenCheckpoint, read_header
from model.checkpoints.header_text import TENSORS_MAX
from model.errors import CheckpointFileError


def framed(document: Any, payload: bytes = b"", *, length: int | None = None) -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + payload


def entry(dtype: Any = "F32", shape: list[Any] | None = None, begin: Any = 0, end: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [2] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.safetensors"


def test_a_header_of_the_reference_library_is_read_with_its_metadata(path: Path) -> None:
    save_file({"w": torch.ones(2, 3), "n": torch.ones(4, dtype=torch.bfloat16)}, path, metadata={"k": "v"})

    header = read_header(path, strict=True)

    assert header.shapes == {"w": (2, 3), "n": (4,)}
    assert header.tensors["n"].dtype == "BF16"
    assert header.metadata == {"k": "v"}
    assert header.size_bytes == path.stat().st_size == header.payload_offset + 24 + 8
    assert header.trailing_bytes == 0
    assert len(header.sha256) == 64


def test_65_bytes_behind_the_last_tensor_are_reported_as_a_published_file_has_them(path: Path) -> None:
    path.write_bytes(framed({"w": entry()}, b"\0" * 8 + b"x" * 65))

    assert read_header(path).trailing_bytes == 65
    with pytest.raises(CheckpointFileError, match="65 bytes behind its last tensor") as caught:
        read_header(path, strict=True)
    assert caught.value.offset == path.stat().st_size - 65


@pytest.mark.parametrize("spaces", [2, 1024 * 1024])
def test_spaces_behind_the_json_text_are_padding(path: Path, spaces: int) -> None:
    path.write_bytes(framed(json.dumps({"w": entry()}).encode() + b" " * spaces, b"\0" * 8))

    assert read_header(path, strict=True).shapes == {"w": (2,)}


@pytest.mark.parametrize("length", [640, 1152])
def test_a_length_that_begins_as_a_pickle_does_is_a_length(path: Path, length: int) -> None:
    path.write_bytes(framed(json.dumps({"w": entry()}).encode().ljust(length), b"\0" * 8))

    assert read_header(path).shapes == {"w": (2,)}


def test_tensors_of_no_bytes_and_of_sub_byte_types_are_legal(path: Path) -> None:
    document = {
        "none": entry(shape=[0, 5], end=0),
        "scalar": entry(shape=[], end=4),
        "four": entry("F4", [2, 3], 4, 7),
        "six": entry("F6_E2M3", [4], 7, 10),
        "late": entry(shape=[0], begin=10, end=10),
    }
    path.write_bytes(framed(document, b"\0" * 10))

    assert read_header(path, strict=True).shapes["four"] == (2, 3)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
FOREIGN = {
    "empty": (b"", "too short", 0),
    "seven bytes": (b"\0" * 7, "too short", 7),
    "zero length": (framed(b"", length=0), "header of 0 bytes", 0),
    "length of one": (framed(b"{", length=1), "header of 1 bytes", 0),
    "length of 2^63": (framed(b"{}", length=2**63), "truncated or foreign", 0),
    "length of 2^64 - 1": (framed(b"{}", length=2**64 - 1), "truncated or foreign", 0),
    "length of one byte more than there is": (framed(b"{}", length=3), "truncated or foreign", 0),
    "header above the cap": (framed(b"{".ljust(HEADER_BYTES_MAX + 1)), "at most 8,388,608", 0),
    "array": (framed(b"[]"), "does not start with", 8),
    "byte order mark": (framed(b"\xef\xbb\xbf{}"), "does not start with", 8),
    "zip": (b"PK\x03\x04" + b"\0" * 40, "zip archive", 0),
    "pickle 2": (b"\x80\x02ccollections\nOrderedDict\n", "pickle", 0),
    "pickle 4": (b"\x80\x04\x95\x10" + b"\0" * 40, "pickle", 0),
    "gguf": (b"GGUF\3" + b"\0" * 40, "GGUF", 0),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + b"\0" * 40, "HDF5", 0),
    "gzip": (b"\x1f\x8b\x08" + b"\0" * 40, "gzip", 0),
    "lfs": (LFS, "Git LFS pointer", 0),
    "html": (b"\n<!doctype html><html></html>", "saved web page", 0),
    "html without doctype": (b"<HTML><head></head></html>", "saved web page", 0),
    "xml": (b'<?xml version="1.0"?><Error/>', "answer of a server", 0),
    "json": (b'{"error": "Invalid username or password."}', "error that a server sent", 0),
    "zeros": (b"\0" * 4096, "interrupted download", 0),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_or_truncated_file_is_named_for_what_it_is(path: Path, name: str) -> None:
    content, reason, offset = FOREIGN[name]
    path.write_bytes(content)

    with pytest.raises(CheckpointFileError, match=reason) as caught:
        read_header(path)

    assert str(path) in str(caught.value)
    assert caught.value.offset == offset


HUGE = b'{"w":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}'
TEXTS: dict[str, tuple[Any, str]] = {
    "bad utf-8": (b'{"\xff', "not valid UTF-8"),
    "nul padding": (b"{}\0\0", r"'\\x00' follows the header"),
    "line break behind the header": (b"{}\n", r"'\\n' follows the header"),
    "two documents": (b"{}{}", "follows the header"),
    "no end": (b'{"w":', "no JSON object"),
    "no colon": (b'{"w" 1}', "no ':'"),
    "no comma": (b'{"__metadata__":{"a":"b" "c":"d"}}', "no ','"),
    "trailing comma": (b'{"__metadata__":{},}', "no string"),
    "comment": (b"{/**/}", "no string"),
    "unquoted key": (b"{w:1}", "no string"),
    "open string": (b'{"w', "malformed string"),
    "control character in a string": (b'{"__metadata__":{"a":"\x01"}}', "malformed string"),
    "half a surrogate": (b'{"\\ud800":{}}', "surrogate"),
    "unprintable name": (b'{"\\u001b[2J":{}}', "not printable"),
    "long name": ({"w" * 4097: entry()}, "too long"),
    "the same tensor twice": (b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{}}', "'w' twice"),
    "the same tensor, escaped": (
        b'{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"\\u0077":{}}', "'w' twice",
    ),
    "the same field twice": (b'{"w":{"dtype":"F32","dtype":"F32"}}', "'dtype' twice"),
    "the same metadata twice": (b'{"__metadata__":{"a":"","a":""}}', "'a' twice"),
    "metadata twice": (b'{"__metadata__":{},"__metadata__":{}}', "'__metadata__' twice"),
    "metadata of a number": ({"__metadata__": {"a": 1}}, "no string"),
    "metadata of an object": ({"__metadata__": {"a": {}}}, "no string"),
    "metadata of null": ({"__metadata__": None}, "no JSON object"),
    "tensor of an array": ({"w": []}, "no JSON object"),
    "nothing in a tensor": ({"w": {}}, "lacks dtype, shape, data_offsets"),
    "no offsets": ({"w": {"dtype": "F32", "shape": [2]}}, "lacks data_offsets"),
    "a field more": ({"w": {**entry(), "more": 1}}, "unknown field 'more'"),
    "unknown dtype": ({"w": entry("f32")}, "unknown dtype 'f32'"),
    "dtype in torch's spelling": ({"w": entry("F8_E4M3FN")}, "unknown dtype 'F8_E4M3FN'"),
    "dtype of an array": ({"w": entry(["F32"])}, "no string"),
    "dtype of null": ({"w": entry(None)}, "no string"),
    "negative size": ({"w": entry(shape=[-2])}, "'?-2'?, which is no integer"),
    "float size": ({"w": entry(shape=[2.0])}, "2.0, which is no integer"),
    "size with exponent": (b'{"w":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}', "no integer"),
    "size with a leading zero": (b'{"w":{"dtype":"F32","shape":[02],"data_offsets":[0,8]}}', "no integer"),
    "boolean size": ({"w": entry(shape=[True])}, "no number"),
    "size in words": ({"w": entry(shape=["2"])}, "no number"),
    "shape of a number": (b'{"w":{"dtype":"F32","shape":2,"data_offsets":[0,8]}}', "no array of integers"),
    "nested shape": ({"w": entry(shape=[[2]])}, "no number"),
    "not a number": (b'{"w":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', "no number"),
    "size of 2^64": ({"w": entry(shape=[2**64])}, "no integer of 0 to"),
    "size of 5,000 digits": (HUGE, "no integer of 0 to"),
    "bytes beyond 2^64": ({"w": entry(shape=[2**32, 2**32])}, "more bytes than a file"),
    "bytes beyond 2^64 times zero": ({"w": entry(shape=[2, 2**63, 0], end=0)}, "more bytes than a file"),
    "rank 9": ({"w": entry(shape=[1] * 9)}, "more than 8 numbers"),
    "one offset": ({"w": {**entry(), "data_offsets": [8]}}, "not two numbers"),
    "three offsets": ({"w": {**entry(), "data_offsets": [0, 8, 8]}}, "more than 2 numbers"),
    "reversed offsets": ({"w": entry(begin=8, end=0)}, "before it begins"),
    "too many bytes": ({"w": entry(end=9)}, "needs 8 bytes and declares 9"),
    "rank 0 with two elements": ({"w": entry(shape=[])}, "needs 4 bytes and declares 8"),
    "a third of a byte": ({"w": entry("F4", [3], 0, 2)}, "needs 1.5 bytes"),
    "deep array": (b'{"w":' + b"[" * 500_000, "no JSON object"),
    "deep object": (b'{"w":' + b'{"w":' * 100_000, "unknown field"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_no_header_is_refused_where_it_goes_wrong(path: Path, name: str) -> None:
    document, reason = TEXTS[name]
    path.write_bytes(framed(document, b"\0" * 8))

    with pytest.raises(CheckpointFileError, match=reason) as caught:
        read_header(path)

    assert caught.value.offset is not None
    assert len(str(caught.value)) < 500


def test_the_offset_counts_bytes_not_characters(path: Path) -> None:
    text = '{"__metadata__":{"é":1}}'.encode()
    path.write_bytes(framed(text))

    with pytest.raises(CheckpointFileError) as caught:
        read_header(path)

    assert caught.value.offset == 8 + text.index(b"1")


TILINGS = {
    "gap at the start": ({"w": entry(begin=4, end=12)}, 12, "gap of 4 bytes before the first", 0),
    "gap": ({"w": entry(), "v": entry(begin=9, end=17)}, 17, "gap of 1 bytes between the tensors 'w'", 8),
    "overlap": ({"w": entry(), "v": entry(begin=7, end=15)}, 15, "overlap of 1 bytes", 7),
    "the same bytes": ({"w": entry(), "v": entry()}, 8, "overlap of 8 bytes", 0),
    "one inside the other": (
        {"w": entry(shape=[4], end=16), "v": entry(begin=4, end=12)}, 16, "overlap of 12 bytes", 4,
    ),
    "truncated by one": ({"w": entry()}, 7, "truncated: 1 bytes of tensors are missing", 7),
    "no payload": ({"w": entry(shape=[16], end=64)}, 0, "truncated: 64 bytes", 0),
    "end near 2^64": (
        {"w": entry("U8", [0], begin=2**64 - 1, end=2**64 - 1)}, 0, "truncated: 18,446,744,073,709,551,6", 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TILINGS)
def test_tensors_that_do_not_account_for_every_byte_are_refused(path: Path, name: str) -> None:
    document, payload_bytes, reason, offset = TILINGS[name]
    content = framed(document, b"\0" * payload_bytes)
    path.write_bytes(content)

    with pytest.raises(CheckpointFileError, match=reason) as caught:
        read_header(path)

    assert caught.value.offset == len(content) - payload_bytes + offset


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("folder", "is a folder"),
        ("pipe", "no regular file"),
        ("dangling", "link to gone, which is not there"),
        ("loop", "cannot be opened"),
        ("absent", "does not exist"),
    ],
)
def test_what_is_no_file_is_refused_without_opening_it(path: Path, kind: str, reason: str) -> None:
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "dangling":
            path.symlink_to("gone")
        case "loop":
            path.symlink_to(path.name)

    with pytest.raises(CheckpointFileError, match=reason):
        read_header(path)


def test_a_link_to_a_file_is_followed_and_refused_when_strict(path: Path, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(framed({"w": entry()}, b"\0" * 8))
    path.symlink_to("b")

    assert read_header(path).shapes == {"w": (2,)}
    with pytest.raises(CheckpointFileError, match="is a link"):
        read_header(path, strict=True)


def test_reads_go_on_in_the_file_that_was_checked_though_its_name_means_another(path: Path) -> None:
    path.write_bytes(framed({"w": entry()}, b"first..."))

    with OpenCheckpoint(path) as file:
        path.rename(path.with_suffix(".old"))
        path.write_bytes(framed({"w": entry()}, b"second.."))

        assert file.read_tensor("w") == b"first..."


def test_a_file_that_shrinks_while_it_is_read_is_an_error_with_its_place(path: Path) -> None:
    content = framed({"w": entry()}, b"\0" * 8)
    path.write_bytes(content)

    with OpenCheckpoint(path) as file:
        os.truncate(path, len(content) - 3)

        with pytest.raises(CheckpointFileError, match="ended while it was read") as caught:
            file.read_tensor("w")

    assert caught.value.offset == len(content) - 3


@pytest.mark.parametrize(
    "text",
    [
        b'{"__metadata__":{' + b",".join(b'"%d":""' % i for i in range(700_000)) + b"}}",
        b'{"w":{"dtype":"F32","shape":[' + b"0," * 4_000_000,
        b'{"w":' + b"[" * 8_000_000,
    ],
    ids=["metadata", "shape", "deep"],
)
def test_a_hostile_header_of_eight_megabytes_costs_a_few_times_that(path: Path, text: bytes) -> None:
    path.write_bytes(framed(text[:HEADER_BYTES_MAX]))
    tracemalloc.start()

    with pytest.raises(CheckpointFileError):
        read_header(path)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * HEADER_BYTES_MAX


def test_more_tensors_than_any_checkpoint_has_are_refused(path: Path) -> None:
    each = (b'"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}' % i for i in range(TENSORS_MAX + 1))
    path.write_bytes(framed(b"{" + b",".join(each) + b"}"))

    with pytest.raises(CheckpointFileError, match="more than 20,000 tensors"):
        read_header(path)
