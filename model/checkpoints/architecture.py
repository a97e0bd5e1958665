"""Which of H3's models a file holds, in which layout, at which sizes, and what of it is missing or too much.

Told from tensor names and shapes only. The header tables are the architectures: a table's sizes are solved
for from the shapes found, and the table at those sizes is what the file is held against.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from model.checkpoints.descriptions import HeaderDescription, describe, load_table
from model.checkpoints.expressions import evaluate, names_in
from model.checkpoints.layers import split_companion
from model.checkpoints.names import (
    ENCODER_PREFIXES,
    RENAMINGS,
    Architecture,
    Layout,
    comfy_name,
    pattern_of,
    whole_name,
    wrapper_prefix,
)
from model.shapes import LAYERS_MAX, Shape

Shapes = Mapping[str, Shape]
BASES: Final[Mapping[Architecture, tuple[str, ...]]] = {
    "transformer": ("dit_full_bf16", "dit_pruned_bf16"),
    "text_encoder": ("te_qwen3vl_bf16",),
    "video_vae": ("vae_video_fp16",),
    "audio_vae": ("vae_audio_fp32",),
}
"""The unquantised table of each architecture; of the transformer, full and pruned."""
OPTIONAL: Final = re.compile(r"latents_mean|latents_std|decoder\.mask_token")
"""What a file may lack: constants of the release, and a token that nothing reads."""
COMPUTED: Final = "rope.inv_freq"
"""What only ComfyUI's files store."""
BEYOND: Final = re.compile(
    r"blocks\.\d+\.attn\.to_gate_compress\.weight|lm_head\.weight|model\.norm\.weight|.*\.weight_g"
)
"""What is known though no table has it: gates of sparse training, what the conditioner cuts off, norms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognised:
    """The model of a file."""

    family: Architecture
    layout: Layout
    prefix: str
    """What every stored name begins with beyond the model's own name."""
    depth: Literal["full", "pruned"] | None
    """Of a transformer: whether AdaLN reads a time embedding or a table."""
    base: str
    """The unquantised variant of its architecture."""

    def own_name(self, stored: str) -> str:
        """Return ComfyUI's name of a stored tensor; `[q]`, `[k]`, `[v]` mark parts of a fused one."""
        return comfy_name(stored.removeprefix(self.prefix), RENAMINGS[self.family, self.layout])


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A file held against its architecture, in ComfyUI's names."""

    description: HeaderDescription
    """The unquantised table at the file's sizes."""
    shapes: Mapping[str, Shape]
    """Name to shape of every tensor that it has."""
    missing: tuple[str, ...]
    unmatched: tuple[str, ...]
    misshapen: tuple[str, ...]
    beyond: tuple[str, ...]
    """Tensors that are known and yet not of this architecture."""
    decoder_alone: bool
    """A VAE's file without its encoder: whole for whoever shows it no picture, clip or sound."""

    def shape_of(self, name: str) -> Shape | None:
        """Return the shape of a tensor, or of a part of one; None for what the architecture does not have."""
        shape = self.shapes.get(whole_name(name))
        return shape if shape is None or whole_name(name) == name else (shape[0] // 3, *shape[1:])


def recognise(names: Iterable[str]) -> Recognised | None:
    """Return the model that most of the names belong to; None if that is not even half of them."""
    stored = list(names)
    prefix = wrapper_prefix(stored)
    examples: dict[str, tuple[str, int]] = {}
    for name in stored:
        own = name.removeprefix(prefix)
        split = split_companion(own)
        own = own if split is None else f"{split[0]}.weight"
        pattern = pattern_of(own)
        example, count = examples.get(pattern, (own, 0))
        examples[pattern] = example, count + 1
    best: tuple[Architecture, Layout] | None = None
    most = len(stored) // 2
    for (family, layout), renaming in RENAMINGS.items():
        known = _patterns(family)
        fitting = sum(
            count
            for example, count in examples.values()
            if pattern_of(whole_name(comfy_name(example, renaming))) in known
        )
        if fitting > most:
            best, most = (family, layout), fitting
    if best is None:
        return None
    family, layout = best
    depth: Literal["full", "pruned"] | None = None
    if family == "transformer":
        depth = "pruned" if f"{prefix}adaln_t_table" in stored else "full"
    base = BASES[family][depth == "pruned"]
    return Recognised(family=family, layout=layout, prefix=prefix, depth=depth, base=base)


def compare(recognised: Recognised, shapes: Shapes, *, packed: Iterable[str]) -> Comparison:
    """Hold logical shapes, in ComfyUI's names and fused, against the architecture.

    `packed` names the tensors whose stored form has been resolved; their padding is not held against them.
    """
    uncertain = set(packed)
    dims = solve_dims(recognised.base, shapes, uncertain=uncertain)
    description = describe(recognised.base, dims=dims)
    wanted = {tensor.name: tensor.shape for tensor in description.tensors}
    missing = [name for name in wanted if name not in shapes and not OPTIONAL.fullmatch(name)]
    if recognised.layout != "comfyui" and COMPUTED in missing:
        missing.remove(COMPUTED)
    encoder = ENCODER_PREFIXES.get(recognised.family, ())
    decoder_alone = bool(encoder) and not any(name.startswith(encoder) for name in shapes)
    if decoder_alone:
        missing = [name for name in missing if not name.startswith(encoder)]
    unknown = [name for name in shapes if name not in wanted]
    beyond = [name for name in unknown if BEYOND.fullmatch(name)]
    unmatched = [name for name in unknown if not BEYOND.fullmatch(name)]
    misshapen = [
        f"{name}: {list(shapes[name])} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in shapes and name not in uncertain and shapes[name] != shape
    ]
    return Comparison(
        description=description,
        shapes=wanted,
        missing=tuple(sorted(missing)),
        unmatched=tuple(sorted(unmatched)),
        misshapen=tuple(sorted(misshapen)),
        beyond=tuple(sorted(beyond)),
        decoder_alone=decoder_alone,
    )


def solve_dims(
    base: str, shapes: Shapes, *, uncertain: Iterable[str] = (), fixed: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the table's sizes as the shapes have them; the released one where no tensor tells.

    Shapes of `uncertain` tensors, which storage may have padded, are asked last; `fixed` sizes are given.
    """
    table = load_table(base)
    late = set(uncertain)
    found: dict[str, int] = dict(fixed or {})
    for group in table["groups"]:
        for expression in group.get("repeat", {}).values():
            for letter in names_in(expression):
                found[letter] = _count(shapes, group["prefix"])
    symbols = list(_symbolic_shapes(table, shapes))
    for chosen in (False, True):
        for name, expressions in symbols:
            shape = shapes[name]
            if (name in late) == chosen and len(shape) == len(expressions):
                for expression, size in zip(expressions, shape, strict=True):
                    _solve(expression, size, found)
    return {**table["dims"], **found}


def _solve(expression: str, size: int, found: dict[str, int]) -> None:
    """Fix the one name of a product that is not known yet."""
    unknown = names_in(expression) - found.keys()
    if len(unknown) == 1:
        [name] = unknown
        unit = evaluate(expression, {**found, name: 1})
        if unit and size % unit == 0:
            found[name] = size // unit


def _symbolic_shapes(table: Mapping[str, Any], shapes: Shapes) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each tensor of the table that the file has, of repeated ones the first, with its letters."""
    for group in table["groups"]:
        for item in group["entries"]:
            suffix = f"{item['linear']}.weight" if "linear" in item else item["name"]
            expressions = (item["O"], item["I"]) if "linear" in item else tuple(item["shape"])
            if name := _first(shapes, group["prefix"] + suffix):
                yield name, expressions


def _first(shapes: Shapes, name: str) -> str | None:
    """Return the name, or the first of those that it stands for with `{i}` a number."""
    if "{i}" not in name:
        return name if name in shapes else None
    whole = re.compile(re.escape(name).replace(r"\{i\}", r"\d+"))
    return next(filter(whole.fullmatch, shapes), None)


def _count(shapes: Shapes, prefix: str) -> int:
    """Return how many blocks there are; one that is missing in between counts, since the rest is there."""
    numbered = re.compile("^" + re.escape(prefix).replace(r"\{i\}", r"(\d{1,5})"))
    indices = {int(match[1]) for name in shapes if (match := numbered.match(name))}
    length = max(indices, default=-1) + 1
    return min(length if length < 2 * len(indices) + 2 else len(indices), LAYERS_MAX)


@functools.cache
def _patterns(family: Architecture) -> set[str]:
    return {pattern_of(tensor.name) for base in BASES[family] for tensor in describe(base, "tiny").tensors}
