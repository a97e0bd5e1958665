"""Presentation: the token stream that a request shows to Qwen3-VL, with one tag per token.

Every token becomes one text row of the transformer and moves the media clocks, so nothing is padded or
dropped. Segments are tokenised apart and their ids joined. Where a vision block lies is remembered, never
read from the ids: a prompt that spells `<|image_pad|>` gets that token as text, as in ComfyUI. Knows nothing
about weights. Sources: ComfyUI 783545f, diffusers 0.42.1, equal but for the prompt's own text.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from model.packing import Tag
from model.text_encoder.special_tokens import IMAGE_PAD, VIDEO_PAD, VISION_END, VISION_START
from model.text_encoder.tokenizer import Tokenizer
from model.text_encoder.vision import Sight, pair_sights, picture_sight
from queue_schemas.conventions import Conventions

_BEFORE_EMBEDDING_WORD = re.compile(r"(?<=\s)(?=embedding:)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownPicture:
    """A keyframe or reference picture, as the VAE gets it."""

    pixels: Tensor
    """uint8 [H, W, 3] on the host."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownClip:
    """A reference clip by the frames that are sampled from it."""

    frames: Tensor
    """uint8 [n, H, W, 3] on the host."""
    pair_seconds: Sequence[float]
    """The time of each pair, an odd last frame being a pair of its own."""
    has_sound: bool


@dataclass(frozen=True, slots=True)
class ShownSound:
    """A reference sound: only its label is shown."""


Shown = ShownPicture | ShownClip | ShownSound


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionBlock:
    """Which rows of the stream hold what the vision tower makes of `sight`; start and end token excluded."""

    start: int
    stop: int
    sight: Sight


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentedMedium:
    """The part of the stream that shows one medium."""

    label: str
    """What the prompt may call it: `<Picture 1>`, `<Video 1>`, `<Audio 1>`."""
    sound_label: str | None = None
    """Of a clip's sound; it comes before the clip's own."""
    start: int
    stop: int
    """Rows, from its first label to its last vision end."""
    blocks: tuple[VisionBlock, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Presentation:
    """Token ids and the tag of each, both L long."""

    ids: tuple[int, ...]
    tags: tuple[int, ...]
    """Of `packing.Tag`; the start and end tokens of a vision block count as video too."""
    media: tuple[PresentedMedium, ...] = ()
    """In order, from row 0 without gaps; the prompt follows."""

    @property
    def blocks(self) -> list[VisionBlock]:
        return [block for medium in self.media for block in medium.blocks]


def present(
    prompt: str, shown: Sequence[Shown], *, tokenizer: Tokenizer, conventions: Conventions
) -> Presentation:
    """Return the stream of a request: every medium in the order given, then the prompt, without a template.

    Empty only for an empty prompt without media, under conventions that do not pad it.
    """
    stream = _Stream(tokenizer)
    numbers: Counter[str] = Counter()

    def label(name: str) -> str:
        numbers[name] += 1
        found = f"<{name} {numbers[name]}>"
        stream.add_text(f"{found}: ")
        return found

    media = []
    for medium in shown:
        start = len(stream.ids)
        sound = label("Audio") if isinstance(medium, ShownClip) and medium.has_sound else None
        own = label(_NAMES[type(medium)])
        blocks: tuple[VisionBlock, ...] = ()
        if isinstance(medium, ShownPicture):
            blocks = (stream.add_block(picture_sight(medium.pixels, conventions=conventions), IMAGE_PAD),)
        elif isinstance(medium, ShownClip):
            blocks = _show_pairs(medium, stream, conventions=conventions)
        media.append(
            PresentedMedium(label=own, sound_label=sound, start=start, stop=len(stream.ids), blocks=blocks)
        )
    for segment in comfyui_segments(prompt) if conventions.prompt_escapes else [prompt]:
        stream.add_text(segment)
    if not stream.ids and conventions.empty_prompt_pad:
        stream.add([tokenizer.pad_id], Tag.TEXT)
    return Presentation(tuple(stream.ids), tuple(stream.tags), tuple(media))


def present_t2va(prompt: str, *, tokenizer: Tokenizer, conventions: Conventions) -> Presentation:
    """Return the stream of a text-only request."""
    return present(prompt, (), tokenizer=tokenizer, conventions=conventions)


_NAMES = {ShownPicture: "Picture", ShownClip: "Video", ShownSound: "Audio"}


@dataclass(slots=True)
class _Stream:
    """Ids and tags as they grow."""

    tokenizer: Tokenizer
    ids: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)

    def add(self, ids: Sequence[int], tag: Tag) -> None:
        self.ids += ids
        self.tags += [tag] * len(ids)

    def add_text(self, text: str) -> None:
        self.add(self.tokenizer.encode(text), Tag.TEXT)

    def add_block(self, sight: Sight, pad: str) -> VisionBlock:
        start, end, filler = (self.tokenizer.special_id(name) for name in (VISION_START, VISION_END, pad))
        first = len(self.ids) + 1
        self.add([start, *[filler] * sight.num_tokens, end], Tag.VIDEO)
        return VisionBlock(start=first, stop=len(self.ids) - 1, sight=sight)


def _show_pairs(clip: ShownClip, stream: _Stream, *, conventions: Conventions) -> tuple[VisionBlock, ...]:
    blocks = []
    sights = pair_sights(clip.frames, conventions=conventions)
    for seconds, sight in zip(clip.pair_seconds, sights, strict=True):
        stream.add_text(f"<{seconds:.1f} seconds>")  # half to even: 0.25 is shown as 0.2
        blocks.append(stream.add_block(sight, VIDEO_PAD))
    return tuple(blocks)


def comfyui_segments(prompt: str) -> list[str]:
    r"""Return the parts that ComfyUI tokenises apart, unescaped.

    `\(` and `\)` lose their backslash; a new part begins where `embedding:` follows white space, which stays
    with the part before. Weights such as `(cat:1.5)` are ordinary text for this model.
    """
    text = prompt.replace(r"\(", "(").replace(r"\)", ")")
    return [part for part in _BEFORE_EMBEDDING_WORD.split(text) if part]
