"""Digests by which a published file is known without its values.

The header's own hash stands in `Header.sha256`; a file whose metadata text varies is still known by its names
and shapes.
"""

import hashlib
from collections.abc import Mapping


def keyset_md5(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return the MD5 over names and shapes (not dtypes) by which DiffSynth-Studio knows a checkpoint.

    Each tensor gives `name:d0_d1_...` and `name`; all are sorted and joined with commas.
    """
    keys = [f"{name}:{'_'.join(map(str, shape))}" for name, shape in shapes.items()]
    return hashlib.md5(",".join(sorted([*keys, *shapes])).encode(), usedforsecurity=False).hexdigest()
