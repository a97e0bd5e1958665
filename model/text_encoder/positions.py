"""Where Qwen3-VL takes each token to be: three coordinates, which M-RoPE turns into rotations.

Unrelated to the transformer's own positions. Source: transformers 5.23.0 `Qwen3VLModel.get_rope_index`, whose
runs of pad tokens are the presentation's blocks here.
"""

import torch
from torch import Tensor

from model.text_encoder.presentation import Presentation
from model.text_encoder.vision import MERGE


def rope_positions(presentation: Presentation) -> Tensor:
    """Return t, h, w of every token, int64 [3, L] on the host.

    Text counts on along all three. A vision block stands still in t, spreads over h and w, and moves the
    count by its longer side, not by its tokens.
    """
    parts, row, count = [], 0, 0
    for block in presentation.blocks:
        parts.append(torch.arange(count, count + block.start - row).expand(3, -1))
        count += block.start - row
        height, width = (side // MERGE for side in block.sight.grid)
        axes = torch.arange(1), torch.arange(height), torch.arange(width)
        parts.append(count + torch.cartesian_prod(*axes).T)
        count += max(height, width)
        row = block.stop
    parts.append(torch.arange(count, count + len(presentation.ids) - row).expand(3, -1))
    return torch.cat(parts, dim=1)
