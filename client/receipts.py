"""References in few words: what each became, and in a film how many rows it had."""

from collections.abc import Sequence
from typing import Any

from queue_schemas.encoded_references import EncodedReference
from queue_schemas.geometry import SAMPLE_RATE_HZ
from queue_schemas.receipts import ReferenceReceipt


def receipt_text(references: Sequence[ReferenceReceipt]) -> str:
    """Return `<Picture 1> 896x576, 1,014 rows; <Video 1> ...`, rows of text and of latents together."""
    return "; ".join(map(_told, references))


def receipt_entries(references: Sequence[ReferenceReceipt]) -> list[dict[str, Any]]:
    """Return what a line for programs tells of each."""
    named = {"place", "label", "sha256", "text_tokens", "tokens"}
    return [reference.model_dump(mode="json", include=named) for reference in references]


def encoded_text(reference: EncodedReference) -> str:
    """Return `896x576`, `896x576, 39 frames` or `2.50 s`."""
    if reference.samples is not None:
        return seconds_text(reference.samples)
    frames = f", {reference.frames} frames" if reference.kind == "video" else ""
    return f"{reference.width}x{reference.height}{frames}"


def seconds_text(samples: int) -> str:
    return f"{samples / SAMPLE_RATE_HZ:.2f} s"


def _told(receipt: ReferenceReceipt) -> str:
    sound = f" with {receipt.sound.label}" if receipt.sound is not None else ""
    rows = receipt.text_tokens + receipt.tokens
    return f"{receipt.label} {encoded_text(receipt)}{sound}, {rows:,} rows"
