"""Tensors of one checkpoint file, cast and placed one by one, each accounted for.

Only plain storage (BF16, F16, F32) is read here; a quantised file is refused by name of its first marker.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from model.checkpoints.header import CheckpointFile, Header
from model.checkpoints.header_text import TensorEntry
from model.errors import CheckpointFileError, CheckpointMismatchError

PLAIN_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
WRAPPER_PREFIXES = ("model.diffusion_model.", "diffusion_model.")


def wrapper_prefix(names: Iterable[str]) -> str:
    """Return the prefix that every name carries (ComfyUI strips one), or an empty string."""
    found = list(names)
    return next((p for p in WRAPPER_PREFIXES if found and all(name.startswith(p) for name in found)), "")


def refuse_quantised(header: Header) -> None:
    """Raise CheckpointFileError if any tensor is stored in another form than bf16, fp16 or fp32."""
    for name, entry in header.tensors.items():
        if name.endswith(".comfy_quant") or entry.dtype not in PLAIN_DTYPES:
            raise CheckpointFileError(
                header.path,
                f"is quantised ({name}: {entry.dtype}); this version reads bf16, fp16 and fp32 files,"
                " so point it at a *_bf16, *_fp16 or *_fp32 file",
            )


def read_tensors(
    header: Header,
    *,
    dtype_of: Callable[[str], torch.dtype | None],
    device: torch.device,
    ignored_prefixes: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Read every tensor of a file but those under `ignored_prefixes`, cast and moved to `device`.

    A name for which `dtype_of` knows no dtype keeps its own; `assign_strict` then reports it as unexpected.
    Raises CheckpointFileError.
    """
    refuse_quantised(header)
    prefix = wrapper_prefix(header.tensors)
    tensors = {}
    with CheckpointFile(header.path) as file:
        if file.header.sha256 != header.sha256:
            raise CheckpointFileError(header.path, "has changed since it was checked; start again")
        for stored, entry in header.tensors.items():
            name = stored.removeprefix(prefix)
            if not name.startswith(tuple(ignored_prefixes)):
                # One tensor at a time: host memory stays at the largest tensor beside the page cache.
                plain = _read_plain(file, entry)
                tensors[name] = plain.to(device=device, dtype=dtype_of(name))
    return tensors


def _read_plain(file: CheckpointFile, entry: TensorEntry) -> Tensor:
    """Return one tensor as it is stored. Read here, since the reference library refuses trailing bytes."""
    data = torch.empty(entry.end - entry.begin, dtype=torch.uint8)
    file.read_into(memoryview(data.numpy().data), file.header.payload_offset + entry.begin)
    return data.view(PLAIN_DTYPES[entry.dtype]).view(entry.shape)


def assign_strict(module: nn.Module, tensors: Mapping[str, Tensor], *, source: Path) -> None:
    """Give every parameter and buffer its tensor; refuse a checkpoint that does not match exactly.

    Dtypes are the reader's business (`read_tensors` casts). Raises CheckpointMismatchError, which lists
    missing, unexpected and wrongly shaped tensors together.
    """
    want = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    missing, unexpected = sorted(want.keys() - found.keys()), sorted(found.keys() - want.keys())
    wrong = sorted(
        f"{name}: {found[name]} instead of {shape}"
        for name, shape in want.items()
        if found.get(name, shape) != shape
    )
    if missing or unexpected or wrong:
        raise CheckpointMismatchError(source, missing=missing, unexpected=unexpected, wrong=wrong)
    module.load_state_dict(dict(tensors), assign=True)
    module.requires_grad_(False).eval()
