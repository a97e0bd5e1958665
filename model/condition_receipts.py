"""The proof that a film's keyframes and references have rows, and what became of each: `ReferenceReceipt`."""

from collections.abc import Sequence

from media.prepared import PreparedClip, PreparedPicture, PreparedSound
from model.conditions import Condition
from model.errors import ReferenceUnusedError
from model.packing import PackedLayout
from model.receipts import tensor_sha256
from model.text_encoder.presentation import PresentedMedium
from queue_schemas.geometry import AUDIO_CHANNELS
from queue_schemas.receipts import ReferenceReceipt, SoundReceipt


def make_receipts(
    conditions: Sequence[Condition], presented: Sequence[PresentedMedium], *, layout: PackedLayout
) -> list[ReferenceReceipt]:
    """Return the proof that each condition has rows. Raises ReferenceUnusedError where one has none."""
    numbered = enumerate(zip(conditions, presented, strict=True))
    return [_receipt(each, shown, layout.condition_rows(number)) for number, (each, shown) in numbered]


def _receipt(condition: Condition, shown: PresentedMedium, rows: range) -> ReferenceReceipt:
    medium = condition.medium
    latents = condition.audio if condition.video is None else condition.video
    if latents is None or not rows or not shown.num_tokens:
        raise ReferenceUnusedError(medium.place, "it has no row in the sequence")
    receipt = ReferenceReceipt(
        place=medium.place,
        label=shown.label,
        kind=medium.kind,
        sha256=medium.sha256,
        changes=medium.changes,
        text_tokens=shown.num_tokens,
        tokens=len(rows),
        rows=(rows.start, rows.stop),
        latent_sha256=tensor_sha256(latents),
    )
    if isinstance(medium, PreparedSound):
        return receipt.model_copy(update={"samples": medium.samples.shape[1]})
    height, width = (
        medium.pixels.shape[:2] if isinstance(medium, PreparedPicture) else (medium.height, medium.width)
    )
    size = {"width": width, "height": height, "frames": condition.num_frames}
    sound = _sound_receipt(condition, medium, shown) if isinstance(medium, PreparedClip) else None
    return receipt.model_copy(update={**size, "sound": sound})


def _sound_receipt(condition: Condition, clip: PreparedClip, shown: PresentedMedium) -> SoundReceipt | None:
    if clip.sound is None or condition.audio is None or shown.sound_label is None:
        return None
    return SoundReceipt(
        label=shown.sound_label,
        sha256=None if clip.sound.place == clip.place else clip.sound.sha256,
        changes=clip.sound.changes,
        samples=clip.sound.samples.shape[1],
        tokens=AUDIO_CHANNELS * condition.audio.shape[2],
        latent_sha256=tensor_sha256(condition.audio),
    )
