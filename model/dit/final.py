"""Final layer: one modulated norm for all rows, then a float32 head per modality.

Its table has one row per timestep; the modality plays no part here.

Shapes: S packed rows, D hidden, M distinct timesteps.
"""

import torch
from torch import Tensor, nn

from model.config import TransformerConfig
from model.dit.modulation import AdaLNProjection, modulate
from model.packing import PackedLayout, Stream, stream_rows


class FinalLayer(nn.Module):
    def __init__(self, config: TransformerConfig, *, dtype: torch.dtype, adaln_dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_eps, dtype=dtype)
        self.adaln_proj = AdaLNProjection(
            config.time_embed_dim,
            config.hidden_size,
            parts=2,
            modalities=1,
            dtype=adaln_dtype,
            table_dtype=adaln_dtype,
        )
        self.video_out = nn.Linear(config.hidden_size, config.video_row_dim, dtype=torch.float32)
        self.audio_out = nn.Linear(config.hidden_size, config.audio_channels, dtype=torch.float32)

    def forward(
        self, x: Tensor, *, modulation: Tensor, timestep_index: Tensor, layout: PackedLayout
    ) -> tuple[Tensor, Tensor]:
        """Return float32 rows of video [Nv, 96] and audio [Na, 32] from x [S, D] and tables [M, 2, D]."""
        shift, scale = modulation.unbind(1)
        # Float32 tables (pruned layout) lift the modulation to float32; bfloat16 ones leave it in bfloat16.
        h = modulate(self.norm(x), shift=shift, scale=scale, row=timestep_index).float()
        video, audio = (stream_rows(layout, h, stream) for stream in (Stream.VIDEO, Stream.AUDIO))
        return self.video_out(video), self.audio_out(audio)
