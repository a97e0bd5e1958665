"""Hostile files: read or refused, never broken; and never read otherwise than the reference library does."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model.checkpoints.descriptions import VARIANTS, describe
from model.checkpoints.header import read_header
from model.checkpoints.header_text import ELEMENT_BITS
from model.errors import CheckpointFileError
from queue_schemas.inspections import Inspection

Inspect = Callable[[Path], Inspection]
CORPUS = Path(__file__).parents[1] / "corpus"
FUZZER = Path(__file__).with_name("fuzz_inspector.py")
fuzzed = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

NAMES = st.sampled_from(
    sorted({t.name for v in VARIANTS for t in describe(v, "tiny", dims={}).tensors if len(t.shape) < 3})
) | st.text(max_size=8)
INTEGERS = st.integers(0, 5) | st.sampled_from([2**31, 2**63, 2**64, -1, 1.0, True, None, "1"])
SHAPES = st.lists(st.integers(0, 4), max_size=3) | st.lists(INTEGERS, max_size=9)
FIELDS = {"dtype": st.sampled_from([*ELEMENT_BITS, "F8_E4M3FN", "f32"]), "shape": SHAPES}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
MARKERS = st.sampled_from(
    sorted({t.marker for v in VARIANTS for t in describe(v, "tiny").tensors if t.marker is not None})
) | st.binary(max_size=40)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A container of tensors laid out one behind the other, most of them as they should be, some changed."""
    document: dict[str, Any] = {}
    payload = bytearray()
    for name in draw(st.lists(NAMES, max_size=6, unique=True)):
        entry = {key: draw(value) for key, value in FIELDS.items()}
        content = draw(MARKERS) if name.endswith("comfy_quant") else b""
        if content:
            entry = {"dtype": "U8", "shape": [len(content)]}
        size = ELEMENT_BITS.get(entry["dtype"], 8)
        for value in entry["shape"]:
            size *= value if type(value) is int and 0 <= value < 5 else 1
        begin = len(payload)
        payload += content or b"\1" * (size // 8)
        document[name] = {**entry, "data_offsets": [begin, len(payload)]}
        if draw(st.integers(0, 9)) == 0:
            document[name] = draw(ANYTHING | st.just({**document[name], draw(st.text(max_size=3)): 1}))
    if draw(st.booleans()):
        document["__metadata__"] = draw(
            st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2) | ANYTHING
        )
    text = json.dumps(document).encode(errors="surrogatepass") + b" " * draw(st.integers(0, 3))
    return len(text).to_bytes(8, "little") + text + bytes(payload) + draw(st.sampled_from([b"", b"", b"x"]))


@fuzzed
@given(content=files())
def test_a_strange_file_is_inspected_or_refused(content: bytes, tmp_path: Path, inspect: Inspect) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)

    try:
        found = inspect(path)
    except CheckpointFileError:
        return

    assert Inspection.model_validate_json(found.model_dump_json()) == found


@fuzzed
@given(content=files(), flips=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3))
def test_what_is_read_strictly_is_what_the_reference_library_reads(
    content: bytes, flips: list[tuple[int, int]], tmp_path: Path
) -> None:
    damaged = bytearray(content)
    for place, value in flips:
        damaged[place % len(damaged)] = value
    path = tmp_path / "a.safetensors"
    path.write_bytes(damaged)

    try:
        header = read_header(path, strict=True)
    except CheckpointFileError:
        return

    reference = dict(safetensors.deserialize(bytes(damaged)))
    assert {name: tuple(item["shape"]) for name, item in reference.items()} == header.shapes
    for name, item in reference.items():
        entry = header.tensors[name]
        begin = header.payload_offset
        assert bytes(item["data"]) == bytes(damaged[begin + entry.begin : begin + entry.end])


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name[:12])
def test_the_kept_corpus_breaks_nothing(path: Path, inspect: Inspect) -> None:
    try:
        found = inspect(path)
    except CheckpointFileError:
        return

    assert Inspection.model_validate_json(found.model_dump_json()) == found


@pytest.mark.slow
def test_a_coverage_guided_run_finds_nothing(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this machine")
    # libFuzzer counts what this process had at most as its own, so it is held to single allocations.
    limits = ["-runs=20000", "-max_len=4096", "-rss_limit_mb=8192", "-malloc_limit_mb=512", "-timeout=20"]

    done = subprocess.run(
        [sys.executable, str(FUZZER), *limits, f"-artifact_prefix={tmp_path}/", str(tmp_path), str(CORPUS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )

    assert done.returncode == 0, done.stderr[-3000:]
