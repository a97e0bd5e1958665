"""What a record says about the runtime: files with their identities, device, driver, versions, memory."""

import hashlib
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from model.loading.files import ResidentFiles
from model.loading.sample import sample_sha256
from queue_schemas.benchmark import CheckpointFile, CheckpointSet
from queue_schemas.versions import installed_versions

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "av", "h3-blackwell-runtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The device and the software on it."""

    device: str
    driver: str | None
    versions: dict[str, str]


def checkpoint_set(files: ResidentFiles, *, tokenizer_identity: str) -> CheckpointSet:
    """Describe the resident set; one synthetic file makes the whole set `random`."""
    headers = files.headers()
    random = any(header.metadata.get("weights") == "random" for header in headers.values())
    weights: Literal["real", "random"] = "random" if random else "real"
    pruned = any(name.endswith("adaln_t_table") for name in files.transformer.tensors)
    entries = [
        CheckpointFile(
            role=role,
            name=header.path.name,
            size_bytes=header.size_bytes,
            header_sha256=header.sha256,
            sample_sha256=sample_sha256(header),
        )
        for role, header in headers.items()
    ]
    own_vocabulary = "tiny vocabulary of bytes" if files.has_tiny_vocabulary else "built-in Qwen vocabulary"
    tokenizer = CheckpointFile(
        role="tokenizer",
        name=files.tokenizer_dir.name if files.tokenizer_dir else own_vocabulary,
        size_bytes=None,
        header_sha256=tokenizer_identity,
    )
    return CheckpointSet(
        name=files.name,
        weights=weights,
        transformer_layout="pruned" if pruned else "full",
        transformer_task=None if files.ref2va_transformer else files.transformer_task,
        files=[*entries, tokenizer],
    )


def tensor_sha256(tensor: Tensor) -> str:
    """Return the hash of a tensor's values as float32, row-major, little-endian."""
    values = tensor.to("cpu", torch.float32).contiguous().numpy()
    return hashlib.sha256(values.astype("<f4", copy=False).data).hexdigest()


def device_facts(device: torch.device) -> DeviceFacts:
    versions = installed_versions(PACKAGES)
    if device.type != "cuda":
        return DeviceFacts(device="cpu", driver=None, versions=versions)
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return DeviceFacts(device=torch.cuda.get_device_name(device), driver=nvidia_driver(), versions=versions)


def nvidia_driver() -> str | None:
    """Return the NVIDIA driver's version, or None where nvidia-smi does not tell it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.split("\n")[0].strip() or None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def memory_line(device: torch.device) -> str:
    """Return in one line what this process holds and held at most: host (Linux), tensors on the device."""
    host = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    now, most = (int(host[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    line = f"host {_gigabytes(now)}, at most {_gigabytes(most)}"
    if device.type == "cuda":
        now, most = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        line += f"; device {_gigabytes(now)}, at most {_gigabytes(most)}"
    return line


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def reset_peak_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """Return the most device bytes that tensors held since the last reset; None on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
