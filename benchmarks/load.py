"""How fast a transformer's file becomes a model on the GPU: `python -m benchmarks.load FILE`.

Four ways for the same bytes out of the page cache: copied to the GPU by our lanes and nothing else, read
tensor by tensor, loaded with every check, from the header on, and, as the peer, by safetensors' own
`load_file`, which checks no value. Beside them the bus alone, from pinned memory. A file
of random weights will do (`python -m model.synthetic --variant dit_pruned_nvfp4 --size full FILE`).
Prints a table, then the record as one JSON line; needs a CUDA GPU.
"""

import argparse
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file

from model.checkpoints.header import Header, OpenCheckpoint, read_header
from model.checkpoints.header_text import TensorEntry
from model.loading.models import load_transformer
from model.loading.transfer import read_bytes
from model.receipts import device_facts
from queue_schemas.benchmark import Environment
from worker.machine import git_commit, node_name

LIMIT: Final = 1.3
"""What loading may take, as a multiple of the copy alone."""
NUM_WARMUP: Final = 1
PEER_REPEATS: Final = 3
_BUS_BYTES: Final = 256 * 1024 * 1024
_BUS_COPIES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRecord:
    """One measured file; medians, all out of the page cache; GB are 10^9 bytes."""

    case: str
    environment: Environment
    num_warmup: int
    num_repeats: int
    size_bytes: int
    num_tensors: int
    bus_gb_per_s: float
    copy_median_ms: float
    """The payload as one tensor: the bound."""
    read_median_ms: float
    safetensors_median_ms: float
    """The reference library, tensors to the GPU and nothing else."""
    load_median_ms: float
    load_best_ms: float
    load_over_copy: float
    """Of the medians."""
    load_gb_per_s: float
    peak_device_bytes: int
    """While loading; `model_bytes` stay."""
    model_bytes: int
    host_bytes: int
    """Memory that loading touched for the first time, page cache apart."""


def measure_load(path: Path, *, num_repeats: int) -> LoadRecord:
    """Raises ModelError for a file that is no transformer."""
    device = torch.device("cuda")
    header = read_header(path)
    payload = max(entry.end for entry in header.tensors.values())
    whole = {"payload": TensorEntry(dtype="U8", shape=(payload,), begin=0, end=payload)}
    copy = _times(lambda: _read(header, whole, device=device), num_repeats=num_repeats)
    host = _touched_bytes()
    read = _times(lambda: _read(header, header.tensors, device=device), num_repeats=num_repeats)
    torch.cuda.reset_peak_memory_stats(device)
    load = _times(lambda: _load(read_header(path), device=device), num_repeats=num_repeats)
    peak = torch.cuda.max_memory_allocated(device)
    module = _load(header, device=device)
    touched = _touched_bytes() - host  # before the peer, who maps the file
    model_bytes = sum(tensor.nbytes for tensor in module.state_dict().values())
    del module
    peer = _times(lambda: load_file(path, device="cuda"), num_repeats=PEER_REPEATS)
    return LoadRecord(
        case=f"load/{path.stem}",
        environment=_environment(device),
        num_warmup=NUM_WARMUP,
        num_repeats=num_repeats,
        size_bytes=header.size_bytes,
        num_tensors=len(header.tensors),
        bus_gb_per_s=round(_bus(device), 1),
        copy_median_ms=statistics.median(copy),
        read_median_ms=statistics.median(read),
        safetensors_median_ms=statistics.median(peer),
        load_median_ms=statistics.median(load),
        load_best_ms=min(load),
        load_over_copy=round(statistics.median(load) / statistics.median(copy), 3),
        load_gb_per_s=round(header.size_bytes / statistics.median(load) / 1e6, 1),
        peak_device_bytes=peak,
        model_bytes=model_bytes,
        host_bytes=touched,
    )


def _read(header: Header, entries: Mapping[str, TensorEntry], *, device: torch.device) -> object:
    with OpenCheckpoint(header.path, known=header) as file:
        return read_bytes(file, entries, device=device)


def _load(header: Header, *, device: torch.device) -> torch.nn.Module:
    return load_transformer(header, device=device, compute_dtype=torch.bfloat16)


def _environment(device: torch.device) -> Environment:
    facts = device_facts(device)
    return Environment(
        node=node_name(None),
        device=facts.device,
        driver=facts.driver,
        platform=platform.platform(),
        python=platform.python_version(),
        versions=facts.versions,
        git_commit=git_commit(),
    )


def _touched_bytes() -> int:
    """Return the most memory that this process ever had; pages of files that are only read are not in it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def _times(act: Callable[[], object], *, num_repeats: int) -> list[float]:
    """Return the milliseconds of each repeat, whose memory is given back to the device in between."""
    times = []
    for _ in range(NUM_WARMUP + num_repeats):
        torch.cuda.synchronize()
        began = time.monotonic()
        result: Any = act()
        torch.cuda.synchronize()
        times.append(round((time.monotonic() - began) * 1000, 1))
        del result
        torch.cuda.empty_cache()
    return times[NUM_WARMUP:]


def _bus(device: torch.device) -> float:
    """Return what copies from pinned memory reach, in GB/s."""
    host = torch.empty(_BUS_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_BUS_BYTES, dtype=torch.uint8, device=device)

    def copies() -> None:
        for _ in range(_BUS_COPIES):
            target.copy_(host, non_blocking=True)

    return _BUS_COPIES * _BUS_BYTES / min(_times(copies, num_repeats=3)) / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and say by the exit code whether loading is within its limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="python -m benchmarks.load model.safetensors"
    )
    parser.add_argument("file", type=Path, help="a transformer's file, as h3-worker takes it")
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("no CUDA GPU is here; what loading costs beside the copy shows only with one")
    record = measure_load(asked.file, num_repeats=asked.repeats)
    found = asdict(record) | {"environment": record.environment.model_dump(mode="json")}
    for name, value in found.items():
        if name != "environment":
            print(f"  {name:20} {value}")  # noqa: T201
    print(json.dumps(found, separators=(",", ":")))  # noqa: T201
    return 0 if record.load_over_copy <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
