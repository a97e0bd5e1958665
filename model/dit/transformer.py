"""`H3Transformer`: text, audio and video rows in, the velocity of the audio and video rows out.

Parameter and buffer names are those of ComfyUI's checkpoints, so a file loads without a mapping. Build it
under `torch.device("meta")` and give it tensors by `load_state_dict(assign=True)`; never `.to(dtype)` it,
because some parts stay float32 (`dtypes.py`). One request at a time, hence no batch axis. Knows no sigmas.

Sign: the velocity points at the data, v = x0 - noise, with timestep 1 clean. ComfyUI's is the negative.

Shapes: S packed rows, L text rows, Nv video rows, Na audio rows, D hidden, M distinct timesteps,
E width of the AdaLN input.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import AttentionFn
from model.config import TransformerConfig
from model.dit.block import DiTBlock
from model.dit.final import FinalLayer
from model.dit.layers import alike
from model.dit.modulation import NUM_MODALITIES, Modulation
from model.dit.refiner import TokenRefiner
from model.dit.rope import RopeFrequencies, rope_table
from model.dit.streaming import on_device
from model.dit.timesteps import TimeEmbedder, interpolate_curve
from model.packing import PackedLayout, pack_rows
from queue_schemas.conventions import Conventions

COMPUTE_DTYPES = (torch.bfloat16, torch.float32)


class H3Transformer(nn.Module):
    adaln_t_table: Tensor

    def __init__(self, config: TransformerConfig, *, compute_dtype: torch.dtype = torch.bfloat16) -> None:
        """Build the layout that `config` names. Raises ValueError for any other compute dtype."""
        super().__init__()
        if compute_dtype not in COMPUTE_DTYPES:
            raise ValueError(
                f"H3 computes in bfloat16 or float32, not {compute_dtype}: its residual stream overflows"
                " float16"
            )
        self.config, self.compute_dtype = config, compute_dtype
        hidden, f32 = config.hidden_size, torch.float32
        # Eight coordinates are projected in float32; the full layout's AdaLN is a big matrix product.
        adaln_dtype = f32 if config.pruned else compute_dtype

        self.video_patch_proj = nn.Linear(config.video_row_dim, hidden, dtype=f32)
        self.audio_patch_proj = nn.Linear(config.audio_channels, hidden, dtype=f32)
        self.condition_proj = nn.Linear(config.text_dim, hidden, dtype=compute_dtype)
        self.rope = RopeFrequencies(config.rope_freq_dim, config.rope_theta)
        if config.time_table_rows is None:
            self.time_embedder = TimeEmbedder(
                config.time_freq_dim, config.time_hidden_dim, config.time_embed_dim
            )
        else:
            table = torch.zeros(config.time_table_rows, config.time_embed_dim, dtype=f32)
            self.register_buffer("adaln_t_table", table)
        self.token_refiner = TokenRefiner(config, dtype=compute_dtype)
        block = partial(DiTBlock, config, dtype=compute_dtype, adaln_dtype=adaln_dtype)
        self.blocks = nn.ModuleList(alike(block, config.num_layers))
        self.final_layer = FinalLayer(config, dtype=compute_dtype, adaln_dtype=adaln_dtype)
        self.requires_grad_(False)

    def encode_text(self, text_embeds: Tensor, *, attention: AttentionFn) -> Tensor:
        """Project and refine text rows [L, text_dim] to [L, D]: once per request, for all steps."""
        return self.token_refiner(
            self.condition_proj(text_embeds.to(self.compute_dtype)), attention=attention
        )

    def rope_table(self, layout: PackedLayout) -> Tensor:
        """Return the rotary table of a layout, [2, S, 48]: once per request, for all steps."""
        return rope_table(layout.position_ids, self.rope.inv_freq, dtype=self.compute_dtype)

    def time_embed(self, timesteps: Tensor, conventions: Conventions) -> Tensor:
        """Embed float32 [M] as [M, E], before the SiLU that the full layout puts in front of AdaLN."""
        if self.config.pruned:
            return interpolate_curve(timesteps, self.adaln_t_table)
        embedded = self.time_embedder(timesteps)
        return embedded.to(self.compute_dtype) if conventions.time_embed_in_compute_dtype else embedded

    def adaln_input(self, time_embed: Tensor) -> Tensor:
        """Return what every AdaLN projection reads, [M, E]; the pruned table was sampled after the SiLU."""
        return time_embed if self.config.pruned else F.silu(time_embed).to(self.compute_dtype)

    def modulate(self, evaluations: Sequence[Tensor], conventions: Conventions) -> list[Modulation]:
        """Return the modulation of each evaluation, given its distinct timesteps, float32 [M].

        Layer by layer for all of them, so AdaLN weights that lie in host memory cross to the device once.
        """
        times = [self.adaln_input(self.time_embed(timesteps, conventions)) for timesteps in evaluations]
        projections = [layer.adaln_proj for layer in (*self.blocks, self.final_layer)]
        tables = [project(times) for project in on_device(projections, times[0].device)]
        return [Modulation(blocks=tuple(blocks), final=final) for *blocks, final in zip(*tables, strict=True)]

    def embed(self, *, video_rows: Tensor, audio_rows: Tensor, text: Tensor, layout: PackedLayout) -> Tensor:
        """Return the packed rows [S, D] that enter the first block."""
        dtype = self.compute_dtype
        return pack_rows(
            layout,
            text=text,
            audio=self.audio_patch_proj(audio_rows).to(dtype),
            video=self.video_patch_proj(video_rows).to(dtype),
        )

    def forward(
        self,
        *,
        video_rows: Tensor,
        audio_rows: Tensor,
        text: Tensor,
        timesteps: Tensor,
        timestep_index: Tensor,
        layout: PackedLayout,
        rope: Tensor,
        attention: AttentionFn,
        conventions: Conventions,
        modulation: Modulation | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the data-ward velocity of all video rows [Nv, 96] and audio rows [Na, 32], float32.

        `video_rows` [Nv, 96] and `audio_rows` [Na, 32] are float32; `text` [L, D] comes from `encode_text`,
        `rope` from `rope_table`, `timesteps` float32 [M] and `timestep_index` int64 [S] from
        `packing.row_timesteps`. `modulation` is that of `timesteps`, from `modulate`; without it it is
        computed here. With it, or with AdaLN weights on the device, nothing waits for the device.
        """
        x = self.embed(video_rows=video_rows, audio_rows=audio_rows, text=text, layout=layout)
        if modulation is None:
            (modulation,) = self.modulate([timesteps], conventions)
        row = timestep_index * NUM_MODALITIES + layout.tags
        for block, tables in zip(self.blocks, modulation.blocks, strict=True):
            x = block(x, modulation=tables, row=row, rope=rope, attention=attention)
        video, audio = self.final_layer(
            x, modulation=modulation.final, timestep_index=timestep_index, layout=layout
        )
        if conventions.velocity_in_compute_dtype:
            video, audio = video.to(self.compute_dtype).float(), audio.to(self.compute_dtype).float()
        return video, audio
