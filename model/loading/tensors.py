"""Tensors of one checkpoint file, cast and placed one by one, each accounted for.

Only plain storage (BF16, F16, F32) is read here; a quantised file is refused by name of its first marker.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from model.checkpoints.header import CheckpointFile, Header
from model.checkpoints.header_text import TensorEntry
from model.errors import CheckpointFileError, CheckpointMismatchError
from model.shapes import Shape, check_shapes

PLAIN_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
ZEROS_MAX = 4096
"""A matrix of as many zeros was never trained; a small one, such as the unused mask token, may be zero."""
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
    Raises CheckpointFileError, also for values that no trained tensor has.
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
                tensor = _read_plain(file, entry).to(device=device, dtype=dtype_of(name))
                refuse_values(tensor, name=stored, source=header.path)
                tensors[name] = tensor
    return tensors


def _read_plain(file: CheckpointFile, entry: TensorEntry) -> Tensor:
    """Return one tensor as it is stored. Read here, since the reference library refuses trailing bytes."""
    data = torch.empty(entry.end - entry.begin, dtype=torch.uint8)
    file.read_into(memoryview(data.numpy().data), file.header.payload_offset + entry.begin)
    return data.view(PLAIN_DTYPES[entry.dtype]).view(entry.shape)


def refuse_values(tensor: Tensor, *, name: str, source: Path) -> None:
    """Raise CheckpointFileError for NaN, infinities, and a matrix of zeros: what broken downloads hold.

    One reduction where the tensor lies, in the dtype that computes: a value too large for it is found too.
    """
    low, high = torch.stack(tensor.aminmax()).tolist()  # both are NaN if any value is
    if not (math.isfinite(low) and math.isfinite(high)):
        raise CheckpointFileError(
            source,
            f"tensor {name!r} holds values that are not finite in {tensor.dtype}; fetch the file again",
        )
    if low == high == 0.0 and tensor.ndim > 1 and tensor.numel() >= ZEROS_MAX:
        raise CheckpointFileError(
            source, f"tensor {name!r} holds nothing but zeros; perhaps its download broke off: fetch it again"
        )


def assign_strict(module: nn.Module, tensors: Mapping[str, Tensor], *, source: Path) -> None:
    """Give every parameter and buffer its tensor; refuse a checkpoint that does not match exactly.

    Dtypes are the reader's business (`read_tensors` casts). Raises CheckpointMismatchError.
    """
    check_shapes(shapes_of(module.state_dict()), shapes_of(tensors), source=source)
    module.load_state_dict(dict(tensors), assign=True)
    module.requires_grad_(False).eval()


def check_constants(tensors: Mapping[str, Tensor], constants: Mapping[str, Tensor], *, source: Path) -> None:
    """Refuse tensors that a file holds although they are always the same, where it holds other values.

    A hundredth is left for files whose every tensor was rounded to bf16. Raises CheckpointMismatchError.
    """
    wrong = [
        f"{name}: not the values that every H3 file has"
        for name, want in constants.items()
        if name in tensors and not torch.allclose(tensors[name].float().cpu(), want, rtol=0.01, atol=0.0)
    ]
    if wrong:
        raise CheckpointMismatchError(source, wrong=wrong)


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
