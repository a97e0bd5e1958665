"""`PackedNetwork`: the transformer as the denoising loop sees it, bound to one request.

Owns what does not change between steps, namely layout, rotary table, refined text, the rows of keyframes and
references, and attention, and what is known before them, the modulations of a schedule; a step only cuts
latents into rows and puts velocities back together. Knows no sigmas and no samplers.

Shapes: as in `latents.py`; L text rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from model.attention import AttentionFn
from model.dit import H3Transformer, Modulation
from model.latents import Latents
from model.packing import PackedLayout, Stream, row_timesteps
from model.patches import patchify_audio, patchify_video, unpatchify_audio, unpatchify_video
from model.sigmas import Timesteps
from queue_schemas.conventions import Conventions
from queue_schemas.geometry import LatentShape


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRows:
    """What keyframes and references add to the video and audio rows: float32, packed order, never moved.

    Nor are they rounded to the network's dtype where the film's latents are.
    """

    video: Tensor
    """[n, 96], noised already."""
    audio: Tensor
    """[n, 32]."""


class PackedNetwork:
    """One request's view of a resident transformer; satisfies `denoise.Network`."""

    def __init__(
        self,
        transformer: H3Transformer,
        text_embeds: Tensor,
        *,
        layout: PackedLayout,
        shape: LatentShape,
        attention: AttentionFn,
        conventions: Conventions,
        conditions: ConditionRows | None = None,
    ) -> None:
        """Refine the text [L, text_dim] and build the rotary table, once, on the device of `text_embeds`."""
        self.transformer, self.attention, self.conventions = transformer, attention, conventions
        self.shape, self.conditions = shape, conditions
        self.layout = layout.to(text_embeds.device)
        self.rope = transformer.rope_table(self.layout)
        self.text = transformer.encode_text(text_embeds, attention=attention)
        self.modulations: Mapping[Timesteps, Modulation] = {}
        """Of the steps to come, from `ModulationCache`; a step that is not here computes its own."""

    def __call__(self, latents: Latents, timesteps: Timesteps) -> Latents:
        """Return the data-ward velocities of the target rows, float32."""
        distinct, index = row_timesteps(self.layout, t_video=timesteps.video, t_audio=timesteps.audio)
        video_rows, audio_rows = patchify_video(latents.video.float()), patchify_audio(latents.audio.float())
        if self.conditions is not None:
            video_rows = torch.cat((self.conditions.video, video_rows))
            audio_rows = torch.cat((self.conditions.audio, audio_rows))
        video, audio = self.transformer(
            video_rows=video_rows,
            audio_rows=audio_rows,
            text=self.text,
            timesteps=distinct,
            timestep_index=index,
            layout=self.layout,
            rope=self.rope,
            attention=self.attention,
            conventions=self.conventions,
            modulation=self.modulations.get(timesteps),
        )
        return Latents(
            video=unpatchify_video(video[self.layout.target_rows(Stream.VIDEO)], self.shape),
            audio=unpatchify_audio(audio[self.layout.target_rows(Stream.AUDIO)]),
        )
