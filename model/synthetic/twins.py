"""Names of the faults that a file can be written with. Imports no torch; `faults.py` makes them."""

from enum import StrEnum


class Twin(StrEnum):
    """The fault of a twin."""

    PLAIN_SCALES = "plain-scales"
    """NVFP4 block scales row after row instead of in tiles."""
    SWAPPED_NIBBLES = "swapped-nibbles"
    """The two 4-bit codes of each byte exchanged."""
    INTERLEAVED_QKV = "interleaved-qkv"
    """Rows of fused q, k, v head by head, as in the original files, instead of all q, all k, all v."""
    HALVED_MARKERS = "halved-markers"
    """The first half of each marker's text."""
    DROPPED_MARKERS = "dropped-markers"
    """Every second marker left out."""
    NO_GLOBAL_SCALE = "no-global-scale"
    """NVFP4 without its `weight_scale_2`."""
    TRAILING_BYTES = "trailing-bytes"
    """65 bytes behind the last tensor, as in a published file: a tolerant reader tells them and goes on."""
    PADDED_HEADER = "padded-header"
    """A header filled up to 1 MiB with spaces, as in community files: no fault to any reader."""
