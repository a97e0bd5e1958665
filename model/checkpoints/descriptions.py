"""Descriptions of the published H3 files: `describe(variant, size)` lists the tensors and gives the header.

`headers/*.json` hold one table per variant, with `dims` of the released size and `tiny_dims` of a file that a
test can load. Expanding one gives names, dtypes, shapes and offsets in file order, the text of each
`comfy_quant` marker, and which linear each group of tensors stores. Knows no values: those are
`model.synthetic`'s. Source of the serialisation rules and figures: the published files' header hashes,
key-set hashes and sizes, which the tests reproduce.

Letters in the tables: O rows and I columns of a linear, M bytes of its marker.
"""

import functools
import hashlib
import importlib.resources
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from model.checkpoints.expressions import evaluate, round_up
from model.checkpoints.header_text import ELEMENT_BITS

Size = Literal["full", "tiny"]
VARIANTS: Final = (
    "dit_full_bf16", "dit_full_int8_convrot",
    "dit_pruned_bf16", "dit_pruned_fp8_scaled", "dit_pruned_int8_convrot", "dit_pruned_nvfp4",
    "dit_pruned_int4_convrot",
    "te_qwen3vl_bf16", "te_qwen3vl_int8_convrot", "te_qwen3vl_nvfp4_awq", "te_qwen3vl_int4_convrot",
    "vae_video_fp16", "vae_audio_fp32",
    "lora_turbo_rank128",
)  # fmt: skip
DTYPE_ORDER: Final = (
    "U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E4M3", "F8_E5M2",
    "I8", "U8", "BOOL",
)  # fmt: skip
"""Tensors lie in the file by dtype in this order, then by name in byte order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a described file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Byte offset in the payload."""
    end: int
    marker: bytes | None = None
    """The whole content of a `comfy_quant` tensor; None for every other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """One linear of a described file; `{name}.weight`, `{name}.weight_scale` and so on store it."""

    name: str
    """Module path, such as `blocks.0.attn.qkv_proj`."""
    out_features: int
    in_features: int
    """The logical size; a packed or padded weight has another shape."""
    template: str
    """`dense`, `nvfp4`, `nvfp4_awq`, `int8_rowwise`, `int4_convrot`, `fp8_scaled`, `fp8_weight_only`."""
    dtype: str | None
    """Of a dense weight."""
    marker: Mapping[str, Any] | None
    """The parsed marker of a quantised weight, such as `{"format": "nvfp4"}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderDescription:
    """A variant at one size."""

    variant: str
    size: Size
    dims: Mapping[str, int]
    tensors: tuple[TensorSpec, ...]
    """In file order: `begin` of each is `end` of the one before."""
    linears: tuple[LinearSpec, ...]
    published_names: tuple[str, ...]
    has_unknown_metadata: bool
    """The published file has a `__metadata__` whose text is not known; `header_bytes` leaves it out."""
    expect: Mapping[str, Any]
    """Figures of the published file (always of the full size): counts, bytes, hashes."""
    pad_to_multiple: int
    pad_to_total: int | None

    @property
    def payload_bytes(self) -> int:
        return self.tensors[-1].end

    def header_bytes(self, metadata: Mapping[str, str] | None = None) -> bytes:
        """Return the file's first bytes: the u64 length and the padded JSON. The payload follows at once."""
        document: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
        for tensor in self.tensors:
            document[tensor.name] = {
                "dtype": tensor.dtype,
                "shape": tensor.shape,
                "data_offsets": (tensor.begin, tensor.end),
            }
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        length = self.pad_to_total or round_up(len(text), self.pad_to_multiple)
        return length.to_bytes(8, "little") + text.ljust(length, b" ")

    @property
    def identity(self) -> str:
        """SHA-256 over `header_bytes()`: what `Header.sha256` says of a file without metadata."""
        return hashlib.sha256(self.header_bytes()).hexdigest()


def describe(
    variant: str, size: Size = "full", *, dims: Mapping[str, int] | None = None
) -> HeaderDescription:
    """Expand a variant of `VARIANTS`; `dims` replaces some of its sizes, for odd shapes (`{"F": 272}`)."""
    table = load_table(variant)
    names = {**table["dims" if size == "full" else "tiny_dims"], **(dims or {})}
    tensors: list[TensorSpec] = []
    linears: list[LinearSpec] = []
    for name, item in _entries(table, names):
        if "linear" in item:
            linear = _linear(name, item, names)
            linears.append(linear)
            tensors += _stored(linear, item, table["templates"])
        else:
            shape = tuple(evaluate(size, names) for size in item["shape"])
            tensors.append(placed(name, item["dtype"], shape))
    layout = table["header_layout"]
    return HeaderDescription(
        variant=variant,
        size=size,
        dims=names,
        tensors=_in_file_order(tensors),
        linears=tuple(linears),
        published_names=tuple(table["files"]),
        has_unknown_metadata=table["metadata"] is not None,
        expect=table["expect"],
        pad_to_multiple=layout["pad_to_multiple"],
        pad_to_total=layout["pad_to_total"],
    )


@functools.cache
def load_table(variant: str) -> dict[str, Any]:
    """Read one table as it is stored; KeyError for a name that is not in VARIANTS."""
    if variant not in VARIANTS:
        raise KeyError(f"no variant {variant!r}; there are {', '.join(VARIANTS)}")
    file = importlib.resources.files("model.checkpoints") / "headers" / f"{variant}.json"
    table: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return table


def _entries(table: Mapping[str, Any], dims: Mapping[str, int]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every entry with its whole name, repeated groups written out."""
    for group in table["groups"]:
        [(letter, count)] = group.get("repeat", {"i": "1"}).items()
        for index in range(evaluate(count, dims)):
            prefix = group["prefix"].replace(f"{{{letter}}}", str(index))
            for item in group["entries"]:
                yield prefix + (item["linear"] if "linear" in item else item["name"]), item


def _linear(name: str, item: Mapping[str, Any], dims: Mapping[str, int]) -> LinearSpec:
    return LinearSpec(
        name=name,
        out_features=evaluate(item["O"], dims),
        in_features=evaluate(item["I"], dims),
        template=item["template"],
        dtype=item.get("dtype"),
        marker=json.loads(item["marker"]) if "marker" in item else None,
    )


def _stored(
    linear: LinearSpec, item: Mapping[str, Any], templates: Mapping[str, Any]
) -> Iterator[TensorSpec]:
    if linear.dtype is not None:
        yield placed(f"{linear.name}.weight", linear.dtype, (linear.out_features, linear.in_features))
        return
    marker = item["marker"].encode()
    sizes = {"O": linear.out_features, "I": linear.in_features, "M": len(marker)}
    for suffix, dtype, shape in templates[linear.template]:
        yield placed(
            f"{linear.name}.{suffix}",
            dtype,
            tuple(evaluate(size, sizes) for size in shape),
            marker=marker if suffix == "comfy_quant" else None,
        )


def placed(
    name: str, dtype: str, shape: tuple[int, ...], *, begin: int = 0, marker: bytes | None = None
) -> TensorSpec:
    """Return a tensor that begins at `begin` of the payload."""
    end = begin + math.prod(shape) * ELEMENT_BITS[dtype] // 8
    return TensorSpec(name=name, dtype=dtype, shape=shape, begin=begin, end=end, marker=marker)


def _in_file_order(tensors: list[TensorSpec]) -> tuple[TensorSpec, ...]:
    ordered, offset = [], 0
    for tensor in sorted(tensors, key=lambda item: (DTYPE_ORDER.index(item.dtype), item.name.encode())):
        spec = placed(tensor.name, tensor.dtype, tensor.shape, begin=offset, marker=tensor.marker)
        ordered.append(spec)
        offset = spec.end
    return tuple(ordered)
