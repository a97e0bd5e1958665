"""Reading an architecture off tensor names and shapes, and holding a file against it. Imports no torch.

A file's shapes are a stranger's: what fixes a size is checked here before anything is built of it, and every
shape is compared before a byte of the payload is read.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from model.errors import CheckpointMismatchError

DIM_MAX: Final = 1 << 20
"""No size that an architecture has is larger; the largest released one is the vocabulary, 151,936 rows."""
LAYERS_MAX: Final = 256
"""No stack is deeper; the deepest released one has 50 layers."""

Shape = tuple[int, ...]


def sizing_shapes(shapes: Mapping[str, Shape], ranks: Mapping[str, int], *, source: Path) -> dict[str, Shape]:
    """Return the shapes of the tensors in `ranks`, each of that many dimensions from 1 to DIM_MAX.

    Raises CheckpointMismatchError, which names every tensor that is missing or cannot be meant.
    """
    missing = [name for name in ranks if name not in shapes]
    wrong = [
        f"{name}: {shapes[name]} is not of rank {rank} with sizes from 1 to {DIM_MAX:,}"
        for name, rank in ranks.items()
        if name in shapes and not (len(shapes[name]) == rank and all(0 < n <= DIM_MAX for n in shapes[name]))
    ]
    if missing or wrong:
        raise CheckpointMismatchError(source, missing=missing, wrong=wrong)
    return {name: shapes[name] for name in ranks}


def count_layers(names: Collection[str], pattern: str, *, source: Path, first: int = 0) -> int:
    """Count `pattern.format(first)`, the next and so on among `names`, up to the first that is missing.

    What lies past a gap is left over, and `check_shapes` refuses it. Raises CheckpointMismatchError when
    there is none or more than LAYERS_MAX.
    """
    stack = [pattern.format(index) for index in range(first, first + LAYERS_MAX + 1)]
    found = next((index for index, name in enumerate(stack) if name not in names), len(stack))
    if not found:
        raise CheckpointMismatchError(source, missing=stack[:1])
    check_rules(source, {f"{stack[-1]}: more than {LAYERS_MAX} layers": found < len(stack)})
    return found


def check_rules(source: Path, rules: Mapping[str, bool]) -> None:
    """Raise CheckpointMismatchError with every rule, `tensor: what is wrong with it`, that does not hold."""
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise CheckpointMismatchError(source, wrong=broken)


def check_shapes(want: Mapping[str, Shape], found: Mapping[str, Shape], *, source: Path) -> None:
    """Refuse tensors that are not exactly those of `want`.

    Raises CheckpointMismatchError, which lists missing, unexpected and wrongly shaped tensors together.
    """
    missing = sorted(want.keys() - found.keys())
    unexpected = sorted(found.keys() - want.keys())
    wrong = sorted(
        f"{name}: {found[name]} instead of {shape}"
        for name, shape in want.items()
        if found.get(name, shape) != shape
    )
    if missing or unexpected or wrong:
        raise CheckpointMismatchError(source, missing=missing, unexpected=unexpected, wrong=wrong)
