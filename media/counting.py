"""Rows of prepared media: labels numbered, text and latents counted, medium by medium in packed order.

Imports what reads media; `checking` needs it only where a job has files. Knows no prompt and no shares.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from media.prepared import PreparedClip, PreparedMedia, PreparedPicture, PreparedSound
from queue_schemas import geometry, reference_geometry
from queue_schemas.checks import CheckedReference, CheckedSound
from queue_schemas.conventions import Conventions

CountTokens = Callable[[str], int]
_LABEL_TOKENS: Final = {"Picture": 6, "Video": 6, "Audio": 5}
"""Of `<Picture 1>: ` with the released vocabulary, for numbers of one digit."""
_BLOCK_ENDS: Final = 2
"""Start and end token of a vision block."""


class Counting:
    """Counts the media of one job."""

    def __init__(
        self, *, film_frames: int, conventions: Conventions, count_tokens: CountTokens | None
    ) -> None:
        """`count_tokens` is a tokenizer's; without it labels count as with the released vocabulary."""
        self._film_frames, self._conventions, self._count = film_frames, conventions, count_tokens
        self._numbers: Counter[str] = Counter()

    def add(self, medium: PreparedMedia) -> CheckedReference:
        """Return the next medium's rows; its share of a step is not known yet."""
        if isinstance(medium, PreparedPicture):
            return self._picture(medium)
        if isinstance(medium, PreparedClip):
            return self._clip(medium)
        assert isinstance(medium, PreparedSound)
        label, text = self._label("Audio")
        return CheckedReference(
            **_named(medium),
            label=label,
            samples=medium.samples.shape[1],
            text_tokens=text,
            tokens=self._sound_tokens(medium),
            step_share=0.0,
        )

    def _picture(self, picture: PreparedPicture) -> CheckedReference:
        height, width, _ = picture.pixels.shape
        label, text = self._label("Picture")
        grid = reference_geometry.picture_grid(width, height, conventions=self._conventions)
        return CheckedReference(
            **_named(picture),
            label=label,
            width=width,
            height=height,
            frames=1,
            text_tokens=text + reference_geometry.grid_tokens(grid) + _BLOCK_ENDS,
            tokens=reference_geometry.visual_shape(width, height).video_tokens,
            step_share=0.0,
        )

    def _clip(self, clip: PreparedClip) -> CheckedReference:
        sound, text = None, 0
        if clip.sound is not None:
            sound_label, text = self._label("Audio")
            is_own = clip.sound.place == clip.place
            sound = CheckedSound(
                label=sound_label,
                sha256=None if is_own else clip.sound.sha256,
                changes=clip.sound.changes,
                samples=clip.sound.samples.shape[1],
                tokens=self._sound_tokens(clip.sound),
            )
        label, own = self._label("Video")
        width, height = clip.frames.width, clip.frames.height
        num_seen_of, encoded = reference_geometry.clip_frames(
            clip.num_frames, film_frames=self._film_frames, conventions=self._conventions
        )
        num_seen = len(reference_geometry.seen_frames(num_seen_of))
        grid = reference_geometry.clip_grid(width, height, num_seen=num_seen, conventions=self._conventions)
        block = reference_geometry.grid_tokens(grid) + _BLOCK_ENDS
        times = reference_geometry.pair_seconds(num_seen_of)
        shape = reference_geometry.visual_shape(width, height, frames=encoded)
        return CheckedReference(
            **_named(clip),
            label=label,
            width=width,
            height=height,
            frames=encoded,
            text_tokens=text + own + sum(self._time_tokens(time) + block for time in times),
            tokens=shape.video_tokens + (sound.tokens if sound else 0),
            step_share=0.0,
            sound=sound,
        )

    def _label(self, name: str) -> tuple[str, int]:
        """Return the next label of that name, and its tokens."""
        self._numbers[name] += 1
        label = f"<{name} {self._numbers[name]}>"
        return label, self._count(f"{label}: ") if self._count else _LABEL_TOKENS[name]

    def _time_tokens(self, seconds: float) -> int:
        """Return the tokens of `<0.2 seconds>`: one a character of the number, and three more."""
        shown = f"{seconds:.1f}"
        return self._count(f"<{shown} seconds>") if self._count else len(shown) + 3

    def _sound_tokens(self, sound: PreparedSound) -> int:
        num_samples = sound.samples.shape[1]
        latents = reference_geometry.sound_latents(num_samples, conventions=self._conventions)
        return geometry.AUDIO_CHANNELS * latents


def _named(medium: PreparedMedia) -> dict[str, Any]:
    return {
        "place": medium.place,
        "kind": medium.kind,
        "sha256": medium.sha256,
        "changes": list(medium.changes),
    }
