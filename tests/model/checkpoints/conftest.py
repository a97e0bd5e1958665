"""Files of any described variant: the exact header and the real markers, holes or given bytes elsewhere."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from model.checkpoints.descriptions import HeaderDescription, placed
from model.checkpoints.inspection import inspect_file
from queue_schemas.inspections import Inspection
from queue_schemas.published import published_files

Document = dict[str, Any]


@pytest.fixture
def sparse(tmp_path: Path) -> Callable[[HeaderDescription], Path]:
    """Write a described file whose payload is a hole but for the markers; of any size, in no time."""

    def write(description: HeaderDescription) -> Path:
        path = tmp_path / f"{description.variant}.safetensors"
        header = description.header_bytes()
        with path.open("wb") as file:
            file.write(header)
            for tensor in description.tensors:
                if tensor.marker is not None:
                    file.seek(len(header) + tensor.begin)
                    file.write(tensor.marker)
            file.truncate(len(header) + description.payload_bytes)
        return path

    return write


@pytest.fixture
def write_tensors(tmp_path: Path) -> Callable[..., Path]:
    """Write tensors given as (dtype, shape, bytes), bytes repeated to the tensor's length; metadata first."""

    def write(
        tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]],
        *,
        name: str = "a.safetensors",
        metadata: Mapping[str, str] | None = None,
    ) -> Path:
        document: Document = {} if metadata is None else {"__metadata__": dict(metadata)}
        payload = bytearray()
        for key, (dtype, shape, content) in tensors.items():
            spec = placed(key, dtype, shape, begin=len(payload))
            size = spec.end - spec.begin
            payload += (content * (size // len(content) + 1))[:size] if size else b""
            document[key] = {"dtype": dtype, "shape": shape, "data_offsets": (spec.begin, spec.end)}
        text = json.dumps(document).encode()
        path = tmp_path / name
        path.write_bytes(len(text).to_bytes(8, "little") + text + payload)
        return path

    return write


@pytest.fixture
def inspect() -> Callable[[Path], Inspection]:
    return lambda path: inspect_file(path, registry=published_files())
