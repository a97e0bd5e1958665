"""Which tensors a quantised weight consists of in a file: suffixes, dtypes, shapes. Imports no torch.

Sources: the published headers; comfy-kitchen 0.2.40 for padding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from model.checkpoints.expressions import round_up
from model.quant.marker import Marker, QuantFormat

Shape = tuple[int, ...]
SCALAR: Final[tuple[Shape, ...]] = ((), (1,))
"""Header shapes of one value: equal bytes, and both are in use."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What one tensor of a quantised weight may look like; the first of each is what published files have."""

    dtypes: tuple[str, ...]
    shapes: tuple[Shape, ...]
    optional: bool = False


@lru_cache(maxsize=256)
def stored_tensors(marker: Marker, *, shape: tuple[int, int]) -> Mapping[str, StoredTensor]:
    """Return suffix to form for a weight of `shape` [O, I], the marker itself left out."""
    rows, columns = shape
    per_row: tuple[Shape, ...] = ((rows, 1), (rows,))
    input_scale = StoredTensor(("F32",), SCALAR, optional=True)
    match marker.format:
        case QuantFormat.NVFP4:
            padded_rows, padded_columns = round_up(rows, 16), round_up(columns, 16)
            scales = (round_up(padded_rows, 128), round_up(padded_columns // 16, 4))
            return {
                "weight": StoredTensor(("U8",), ((padded_rows, padded_columns // 2),)),
                # Some writers have no F8 and store its bytes.
                "weight_scale": StoredTensor(("F8_E4M3", "U8"), (scales,)),
                "weight_scale_2": StoredTensor(("F32",), SCALAR),
                "input_scale": input_scale,
                "pre_quant_scale": StoredTensor(("BF16", "F16", "F32"), ((columns,),), optional=True),
            }
        case QuantFormat.FP8:
            return {
                "weight": StoredTensor(("F8_E4M3",), (shape,)),
                "weight_scale": StoredTensor(("F32",), SCALAR),
                "input_scale": input_scale,
            }
        case QuantFormat.INT8:
            scale_shapes = per_row if marker.group else (*per_row, *SCALAR)
            return {
                "weight": StoredTensor(("I8",), (shape,)),
                "weight_scale": StoredTensor(("F32",), scale_shapes),
            }
        case QuantFormat.INT4:
            return {
                "weight": StoredTensor(("I8",), ((rows, columns // 2),)),
                "weight_scale": StoredTensor(("F32",), per_row[::-1]),
            }


def misfit(marker: Marker, *, shape: tuple[int, int], is_embedding: bool) -> str | None:
    """Say why a weight of `shape` cannot be stored so, if it cannot."""
    columns = shape[1]
    if is_embedding and marker.format is not QuantFormat.INT8:
        return f"an embedding is decoded from {QuantFormat.INT8}, not from {marker.format}"
    if marker.group and columns % marker.group:
        return f"its convrot_groupsize {marker.group} does not divide the weight's {columns} columns"
    return None
