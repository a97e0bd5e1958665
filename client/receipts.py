"""Receipts in few words: what each reference of a film became, and how many rows it had."""

from collections.abc import Sequence
from typing import Any

from queue_schemas.geometry import SAMPLE_RATE_HZ
from queue_schemas.receipts import ReferenceReceipt


def receipt_text(references: Sequence[ReferenceReceipt]) -> str:
    """Return `<Picture 1> 896x576, 1,014 rows; <Video 1> ...`, rows of text and of latents together."""
    return "; ".join(
        f"{reference.label} {_encoded(reference)}, {reference.text_tokens + reference.tokens:,} rows"
        for reference in references
    )


def receipt_entries(references: Sequence[ReferenceReceipt]) -> list[dict[str, Any]]:
    """Return what a line for programs tells of each."""
    named = {"place", "label", "sha256", "text_tokens", "tokens"}
    return [reference.model_dump(mode="json", include=named) for reference in references]


def _encoded(reference: ReferenceReceipt) -> str:
    if reference.samples is not None:
        return f"{reference.samples / SAMPLE_RATE_HZ:.2f} s"
    frames = f", {reference.frames} frames" if reference.kind == "video" else ""
    sound = f" with {reference.sound.label}" if reference.sound is not None else ""
    return f"{reference.width}x{reference.height}{frames}{sound}"
