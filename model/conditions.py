"""Keyframes and references: from prepared media to what the text encoder is shown, and to packed rows.

Order, labels and rows follow one list, that of `in_packed_order`. Whatever would leave no trace in the film
is refused here, never passed over. Knows no files and no steps.

Shapes: as in `latents.py`; n rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from media.prepared import PreparedClip, PreparedMedia, PreparedPicture, PreparedSound
from model.attention import AttentionFn
from model.dit import H3Transformer
from model.errors import ReferenceUnusedError
from model.latents import Latents
from model.network import ConditionRows, PackedNetwork
from model.noise import draw_noise, noise_condition
from model.packing import ConditionShape, Role, pack
from model.patches import patchify_audio, patchify_video
from model.text_encoder.encoder import See
from model.text_encoder.presentation import Presentation, Shown, ShownClip, ShownPicture, ShownSound
from model.text_encoder.vision import Sight, VisionRows
from queue_schemas.conventions import PRESETS, Conventions
from queue_schemas.geometry import (
    AUDIO_LATENT_CHANNELS,
    PATCH,
    VIDEO_LATENT_CHANNELS,
    LatentShape,
)
from queue_schemas.jobs import Job
from queue_schemas.reference_geometry import clip_frames, packed_order, pair_seconds, seen_frames

EncodeFilm = Callable[[Iterable[NDArray[np.uint8]]], Tensor]
"""From frames [f, H, W, 3] in pieces, or a picture as one frame, to normalised latents [24, t, lh, lw]."""
EncodeSound = Callable[[Tensor], Tensor]
"""From samples [2, N] to normalised latents [2, 32, n]."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Condition:
    """One keyframe or reference, encoded: clean, normalised, float32."""

    medium: PreparedMedia
    role: Role
    video: Tensor | None
    """[24, t, lh, lw]; None for a sound."""
    audio: Tensor | None
    """[2, 32, n]; None for what is silent."""
    num_frames: int
    """Pixel frames as encoded; 0 for a sound."""

    @property
    def shape(self) -> ConditionShape:
        frames, height, width = (0, 0, 0) if self.video is None else self.video.shape[1:]
        audio = 0 if self.audio is None else self.audio.shape[2]
        return ConditionShape(
            role=self.role, shape=LatentShape(frames=frames, height=height, width=width, audio=audio)
        )


def in_packed_order(
    job: Job, media: Sequence[PreparedMedia], *, conventions: Conventions
) -> list[PreparedMedia]:
    """Return a job's media as they are labelled and packed. Raises ReferenceUnusedError for a missing one."""
    wanted = [medium.place for medium in job.media if not medium.place.endswith(".audio")]
    given = [medium.place for medium in media]
    for place in wanted:
        if place not in given:
            raise ReferenceUnusedError(place, "it did not reach the model")
    if given != wanted:
        raise ValueError(f"the job's media are {wanted}; got {given}")
    if job.workflow != "ref2va":
        return list(media)
    return [media[n] for n in packed_order([medium.kind for medium in media], conventions=conventions)]


def show(medium: PreparedMedia) -> Shown:
    """Return what the text encoder is shown of a medium."""
    if isinstance(medium, PreparedPicture):
        return ShownPicture(pixels=torch.from_numpy(medium.pixels))
    if isinstance(medium, PreparedSound):
        return ShownSound()
    return ShownClip(
        frames=torch.from_numpy(medium.frames.take(seen_frames(medium.num_frames))),
        pair_seconds=pair_seconds(medium.num_frames),
        has_sound=medium.sound is not None,
    )


def encode_condition(
    medium: PreparedMedia,
    *,
    film_frames: int,
    conventions: Conventions,
    encode_film: EncodeFilm,
    encode_sound: EncodeSound,
) -> Condition:
    """Bring one medium through the VAEs.

    Raises ReferenceUnusedError where that leaves nothing of it.
    """
    video = audio = None
    num_frames = 0
    if isinstance(medium, PreparedPicture):
        num_frames, video = 1, encode_film([medium.pixels[None]])
        refuse_blank(medium.place, video, of=[medium.pixels[None]])
    elif isinstance(medium, PreparedClip):
        _, num_frames = clip_frames(medium.num_frames, film_frames=film_frames, conventions=conventions)
        video = encode_film(medium.frames.pieces(num_frames))
        refuse_blank(medium.place, video, of=medium.frames.pieces(num_frames))
    sound = medium.sound if isinstance(medium, PreparedClip) else medium
    if isinstance(sound, PreparedSound):
        audio = encode_sound(torch.from_numpy(sound.samples))
        refuse_blank(sound.place, audio.flatten(0, 1), of=[sound.samples.T])
    role = Role(medium.place if medium.place in (Role.FIRST_FRAME, Role.LAST_FRAME) else medium.kind)
    return Condition(medium=medium, role=role, video=video, audio=audio, num_frames=num_frames)


def watching(see: See, media: Sequence[PreparedMedia], *, presentation: Presentation) -> See:
    """Return `see` with a look at what it returns: a picture's rows must tell something of it.

    Calls are taken in the presentation's order. Raises ReferenceUnusedError.
    """
    places = [
        medium.place
        for medium, presented in zip(media, presentation.media, strict=True)
        for _ in presented.blocks
    ]
    asked = iter(places)

    def look(sight: Sight) -> VisionRows:
        place, rows = next(asked), see(sight)
        refuse_blank(place, rows.merged.T, of=[sight.frames.numpy()])
        return rows

    return look


def refuse_blank(place: str, values: Tensor, *, of: Iterable[NDArray[Any]]) -> None:
    """Raise ReferenceUnusedError where `values` are the same at every place and what they are made of is not.

    `values` are [channels, places ...], `of` comes in pieces [..., channels]. What is empty itself, a black
    picture or a silent sound, passes.
    """
    flat = values.flatten(1)
    if flat.shape[1] > 1 and not bool((flat == flat[:, :1]).all()):
        return
    if flat.shape[1] == 1 and bool(flat.any()):
        return
    for piece in of:
        pixels = piece.reshape(-1, piece.shape[-1])
        if (pixels != pixels[0]).any():
            raise ReferenceUnusedError(place, "what it was encoded to is that of an empty one")


def make_rows(
    conditions: Sequence[Condition], noise: Sequence[Tensor], *, conventions: Conventions
) -> ConditionRows:
    """Return the rows of all conditions on the device of their latents; `noise` is `Noise.conditions`."""
    seen = [each.video for each in conditions if each.video is not None]
    heard = [each.audio for each in conditions if each.audio is not None]
    device = (seen or heard)[0].device
    video = [
        noise_condition(patchify_video(latents), rows.to(device), conventions=conventions)
        for latents, rows in zip(seen, noise, strict=True)
    ]
    audio = [patchify_audio(latents) for latents in heard]
    no_video = torch.empty(0, VIDEO_LATENT_CHANNELS * PATCH * PATCH, device=device)
    no_audio = torch.empty(0, AUDIO_LATENT_CHANNELS, device=device)
    return ConditionRows(video=torch.cat((no_video, *video)), audio=torch.cat((no_audio, *audio)))


def bind(
    job: Job,
    transformer: H3Transformer,
    *,
    text_embeds: Tensor,
    presentation: Presentation,
    conditions: Sequence[Condition],
    attention: AttentionFn,
) -> tuple[PackedNetwork, Latents]:
    """Return a job's network, and the noise that it starts from, on the device of `text_embeds`."""
    conventions, device = PRESETS[job.conventions], text_embeds.device
    noise = draw_noise(
        job.latent_shape,
        seed=job.seed,
        conventions=conventions,
        conditions=[each.shape.shape for each in conditions if each.video is not None],
    )
    layout = pack(
        len(presentation.ids),
        job.latent_shape,
        text_tags=torch.tensor(presentation.tags),
        conditions=[each.shape for each in conditions],
    )
    network = PackedNetwork(
        transformer,
        text_embeds,
        layout=layout,
        shape=job.latent_shape,
        attention=attention,
        conventions=conventions,
        conditions=make_rows(conditions, noise.conditions, conventions=conventions) if conditions else None,
    )
    return network, noise.film.to(device)
