"""Presentation: the token stream that a request shows to Qwen3-VL, with one tag per token.

Every token becomes one text row of the transformer and moves the media clocks, so nothing is padded or
dropped. Segments are tokenised apart and their ids joined. Knows nothing about weights.
"""

import re
from dataclasses import dataclass

from model.packing import Tag
from model.text_encoder.tokenizer import Tokenizer
from queue_schemas.conventions import Conventions

_BEFORE_EMBEDDING_WORD = re.compile(r"(?<=\s)(?=embedding:)")


@dataclass(frozen=True, slots=True)
class Presentation:
    """Token ids and the tag of each, both L long."""

    ids: tuple[int, ...]
    tags: tuple[int, ...]
    """Of `packing.Tag`; the start and end tokens of a vision block count as video too."""


def present_t2va(prompt: str, *, tokenizer: Tokenizer, conventions: Conventions) -> Presentation:
    """Return the stream of a text-only request: the prompt's tokens, without a template."""
    ids = prompt_ids(prompt, tokenizer=tokenizer, conventions=conventions)
    return Presentation(tuple(ids), (Tag.TEXT,) * len(ids))


def prompt_ids(prompt: str, *, tokenizer: Tokenizer, conventions: Conventions) -> list[int]:
    """Return the ids of a prompt, which may be none under conventions that do not pad."""
    segments = comfyui_segments(prompt) if conventions.prompt_escapes else [prompt]
    ids = [token for segment in segments for token in tokenizer.encode(segment)]
    if not ids and conventions.empty_prompt_pad:
        ids = [tokenizer.pad_id]
    return ids


def comfyui_segments(prompt: str) -> list[str]:
    r"""Return the parts that ComfyUI tokenises apart, unescaped.

    `\(` and `\)` lose their backslash; a new part begins where `embedding:` follows white space, which stays
    with the part before. Weights such as `(cat:1.5)` are ordinary text for this model.
    """
    text = prompt.replace(r"\(", "(").replace(r"\)", ")")
    return [part for part in _BEFORE_EMBEDDING_WORD.split(text) if part]
