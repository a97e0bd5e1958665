"""How fast a transformer's file becomes a model on the GPU: `python -m benchmarks.load FILE`.

Three times for the same bytes out of the page cache: copied to the GPU and nothing else, read tensor by
tensor, and loaded as the engine does it, with every check. Beside them the bus alone, from pinned memory. A
file of random weights will do (`python -m model.synthetic --variant dit_pruned_nvfp4 --size full FILE`).
Prints a table, then one JSON line; needs a CUDA GPU.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch

from model.checkpoints.header import CheckpointFile, Header, read_header
from model.checkpoints.header_text import TensorEntry
from model.loading.models import load_transformer
from model.loading.transfer import read_bytes
from model.receipts import device_facts

LIMIT: Final = 1.3
"""What loading may take, as a multiple of the copy alone."""
_BUS_BYTES: Final = 256 * 1024 * 1024
_BUS_COPIES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTimes:
    """One measurement; seconds are the best of the repeats, all out of the page cache."""

    device: str
    file_bytes: int
    tensors: int
    bus_gb_per_s: float
    """GB are 10^9 bytes."""
    copy_s: float
    """The payload as one tensor."""
    read_s: float
    load_s: float
    load_over_copy: float
    load_gb_per_s: float
    peak_device_bytes: int
    """While loading; `model_bytes` stay."""
    model_bytes: int
    host_bytes: int
    """How much more memory the process has touched than before, page cache apart."""


def measure_load(path: Path, *, repeats: int) -> LoadTimes:
    """Raises ModelError for a file that is no transformer."""
    device = torch.device("cuda")
    header = read_header(path)
    payload = max(entry.end for entry in header.tensors.values())
    whole = {"payload": TensorEntry(dtype="U8", shape=(payload,), begin=0, end=payload)}
    copy = _best(
        lambda: _read(header, whole, device=device), repeats=repeats + 1
    )  # the first fills the cache
    host = _touched_bytes()
    read = _best(lambda: _read(header, dict(header.tensors), device=device), repeats=repeats)
    torch.cuda.reset_peak_memory_stats(device)
    load = _best(
        lambda: load_transformer(read_header(path), device=device, compute_dtype=torch.bfloat16),
        repeats=repeats,
    )
    peak = torch.cuda.max_memory_allocated(device)
    module = load_transformer(header, device=device, compute_dtype=torch.bfloat16)
    return LoadTimes(
        device=str(device_facts(device).device),
        file_bytes=header.size_bytes,
        tensors=len(header.tensors),
        bus_gb_per_s=round(_bus(device), 1),
        copy_s=copy,
        read_s=read,
        load_s=load,
        load_over_copy=round(load / copy, 3),
        load_gb_per_s=round(header.size_bytes / load / 1e9, 1),
        peak_device_bytes=peak,
        model_bytes=sum(tensor.nbytes for tensor in module.state_dict().values()),
        host_bytes=_touched_bytes() - host,
    )


def _touched_bytes() -> int:
    """Return the most memory that this process ever had; pages of files that are only read are not in it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def _read(header: Header, entries: dict[str, TensorEntry], *, device: torch.device) -> object:
    with CheckpointFile(header.path) as file:
        return read_bytes(file, entries, device=device)


def _best(act: Callable[[], object], *, repeats: int) -> float:
    """Return the shortest time of an act whose memory is given back to the device in between."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.monotonic()
        result: Any = act()
        torch.cuda.synchronize()
        times.append(time.monotonic() - began)
        del result
        torch.cuda.empty_cache()
    return round(min(times), 4)


def _bus(device: torch.device) -> float:
    """Return what copies from pinned memory reach, in GB/s."""
    host = torch.empty(_BUS_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_BUS_BYTES, dtype=torch.uint8, device=device)

    def copies() -> None:
        for _ in range(_BUS_COPIES):
            target.copy_(host, non_blocking=True)

    return _BUS_COPIES * _BUS_BYTES / _best(copies, repeats=3) / 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether loading is within its limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="python -m benchmarks.load model.safetensors"
    )
    parser.add_argument("file", type=Path, help="a transformer's file, as h3-worker takes it")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("no CUDA GPU is here; what loading costs beside the copy shows only with one")
    found = asdict(measure_load(asked.file, repeats=asked.repeats))
    for name, value in found.items():
        print(f"  {name:20} {value}")  # noqa: T201
    print(json.dumps(found, separators=(",", ":")))  # noqa: T201
    return 0 if found["load_over_copy"] <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
