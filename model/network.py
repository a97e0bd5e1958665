"""`PackedNetwork`: the transformer as the denoising loop sees it, bound to one request.

Owns what does not change between steps, namely layout, rotary table, refined text and attention, and what is
known before them, the modulations of a schedule; a step only cuts latents into rows and puts velocities back
together. Knows no sigmas and no samplers.

Shapes: as in `latents.py`; L text rows.
"""

from collections.abc import Mapping

from torch import Tensor

from model.attention import AttentionFn
from model.dit import H3Transformer, Modulation
from model.latents import Latents
from model.packing import (
    PackedLayout,
    Stream,
    patchify_audio,
    patchify_video,
    row_timesteps,
    unpatchify_audio,
    unpatchify_video,
)
from model.sigmas import Timesteps
from queue_schemas.conventions import Conventions
from queue_schemas.geometry import LatentShape


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
    ) -> None:
        """Refine the text [L, text_dim] and build the rotary table, once, on the device of `text_embeds`."""
        self.transformer, self.attention, self.conventions = transformer, attention, conventions
        self.shape = shape
        self.layout = layout.to(text_embeds.device)
        self.rope = transformer.rope_table(self.layout)
        self.text = transformer.encode_text(text_embeds, attention=attention)
        self.modulations: Mapping[Timesteps, Modulation] = {}
        """Of the steps to come, from `ModulationCache`; a step that is not here computes its own."""

    def __call__(self, latents: Latents, timesteps: Timesteps) -> Latents:
        """Return the data-ward velocities of the target rows, float32."""
        distinct, index = row_timesteps(self.layout, t_video=timesteps.video, t_audio=timesteps.audio)
        video, audio = self.transformer(
            video_rows=patchify_video(latents.video.float()),
            audio_rows=patchify_audio(latents.audio.float()),
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
