"""Coverage-guided fuzzing of header reader and inspector: python fuzz_inspector.py CORPUS -runs=100000

Takes libFuzzer's arguments. A find is any exception but CheckpointFileError, a report that its own schema
refuses, or memory above -rss_limit_mb. Mutations know the container: most keep its lengths right, or few
inputs would get past them.
"""

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["model.checkpoints", "model.quant.marker", "model.quant.storage"]):
    from model.checkpoints.inspection import inspect_file
from model.checkpoints.descriptions import VARIANTS, describe
from model.checkpoints.header_text import ELEMENT_BITS
from model.errors import CheckpointFileError
from queue_schemas.inspections import Inspection
from queue_schemas.published import published_files

FILE = Path(tempfile.mkdtemp()) / "fuzzed.safetensors"
REGISTRY = published_files()
DTYPES = [*ELEMENT_BITS, "F16_", ""]
SIZES = [0, 1, 2, 3, 16, 17, 2**31, 2**63, -1]
NAMES = sorted({tensor.name for variant in VARIANTS for tensor in describe(variant, "tiny").tensors})
TEXTS = sorted({t.marker for v in VARIANTS for t in describe(v, "tiny").tensors if t.marker is not None})


def inspect_bytes(data: bytes) -> None:
    FILE.write_bytes(data)
    try:
        found = inspect_file(FILE, registry=REGISTRY)
    except CheckpointFileError:
        return
    assert Inspection.model_validate_json(found.model_dump_json()) == found


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    draw = random.Random(seed)
    length = int.from_bytes(data[:8], "little")
    text, payload = data[8 : 8 + length], data[8 + length :]
    way = draw.random()
    if length > len(data) or way < 0.1:
        return bytes(atheris.Mutate(data, max_size))
    if way < 0.4 and text:
        text = bytes(atheris.Mutate(text, max(len(text), 1)))
    elif way < 0.5 and payload:
        payload = bytes(atheris.Mutate(payload, len(payload)))
    else:
        try:
            text, payload = remake(json.loads(text), payload, draw)
        except (ValueError, RecursionError, TypeError, AttributeError, LookupError):  # what json makes of it
            return bytes(atheris.Mutate(data, max_size))
    return (len(text).to_bytes(8, "little") + text + payload)[:max_size]


def remake(document: dict[str, Any], payload: bytes, draw: random.Random) -> tuple[bytes, bytes]:
    """Change tensors one by one and lay them out again, so that the container stays whole."""
    metadata = document.pop("__metadata__", None)
    tensors = list(document.items())
    for _ in range(draw.randint(1, 4)):
        name = draw.choice(NAMES)
        entry = {
            "dtype": draw.choice(DTYPES),
            "shape": [draw.choice(SIZES[:5]) for _ in range(draw.randint(0, 2))],
        }
        if not tensors or draw.random() < 0.3:
            tensors.append((name, entry))
            continue
        index = draw.randrange(len(tensors))
        old, kept = tensors[index]
        tensors[index] = draw.choice([(name, kept), (old, {**kept, "dtype": entry["dtype"]}), (old, entry)])
        if draw.random() < 0.2:
            del tensors[index]
    made: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    content = bytearray()
    for name, entry in tensors:
        marker = draw.choice(TEXTS) if name.endswith("comfy_quant") else b""
        shape = [len(marker)] if marker and draw.random() < 0.9 else entry["shape"]
        size = ELEMENT_BITS.get("U8" if marker else entry["dtype"], 8)
        for value in shape:
            size *= min(abs(value), 64)
        begin = len(content)
        content += (marker or payload[begin:] + b"\1" * 4096)[: size // 8][:4096]
        made[name] = {
            "dtype": "U8" if marker else entry["dtype"],
            "shape": shape,
            "data_offsets": [begin, len(content)],
        }
    return json.dumps(made).encode(), bytes(content)


if __name__ == "__main__":
    atheris.Setup(sys.argv, inspect_bytes, custom_mutator=mutate)
    atheris.Fuzz()
