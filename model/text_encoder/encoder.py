"""`TextEncoder`: Qwen3-VL up to a middle layer; a presentation in, one row of features per token out.

The stack ends at `config.num_layers` and its final norm is gone: H3 was trained on the residual stream.
transformers supplies the modules, built without memory and fed by assignment, so a linear can be exchanged
for a quantised one before that. The vision tower sees one picture or pair of frames at a time: it attends
within each alone, so its memory is that of the largest, and its rows do not depend on what else is shown.
Knows neither files nor the transformer that reads the features.

Shapes: L tokens, C = hidden_size.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import TextEncoderConfig
from model.errors import EmptyPromptError, TokenizerMismatchError
from model.rotary import inverse_frequencies
from model.text_encoder.layout import config_from_shapes
from model.text_encoder.positions import rope_positions
from model.text_encoder.presentation import Presentation
from model.text_encoder.vision import Sight, VisionRows, patch_rows

__all__ = ["TextEncoder", "build_on_meta", "config_from_shapes"]

See = Callable[[Sight], VisionRows]

VISION_ROPE_THETA: Final = 10_000.0


class TextEncoder:
    """The frozen conditioner. No `nn.Module`: a `.to(dtype)` would round the rotary frequencies."""

    def __init__(self, config: TextEncoderConfig, model: nn.Module, *, dtype: torch.dtype) -> None:
        """Take a model from `build_on_meta` that has its tensors by now, and computes in `dtype`."""
        self.config = config
        self.model = model.eval().requires_grad_(False)
        self.dtype = dtype
        _restore_rotary(model, config, device=self.device)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.no_grad()
    def encode(self, presentation: Presentation, *, see: See | None = None) -> Tensor:
        """Return the text features [L, C], in the encoder's dtype and on its device.

        `see` stands for `encode_vision`, so that rows can be kept. Raises EmptyPromptError and
        TokenizerMismatchError.
        """
        if not presentation.ids:
            raise EmptyPromptError
        if max(presentation.ids) >= self.config.vocab_size:  # on a GPU such an id would be a sticky fault
            raise TokenizerMismatchError(largest_id=max(presentation.ids), num_rows=self.config.vocab_size)
        language = self.model.get_submodule("language_model")
        ids = torch.tensor([presentation.ids], dtype=torch.int64, device=self.device)  # [1, L]
        embeds = language.get_submodule("embed_tokens")(ids)  # [1, L, C]
        vision = self._fill_in(embeds, presentation, see=see or self.encode_vision)
        # No mask: one request, never padded, so plain causal attention is exact.
        features: Tensor = language(
            inputs_embeds=embeds,
            position_ids=rope_positions(presentation)[:, None].to(self.device),
            use_cache=False,
            **vision,
        ).last_hidden_state  # [1, L, C]
        return features[0]

    @torch.no_grad()
    def encode_vision(self, sight: Sight) -> VisionRows:
        """Return the rows of one picture or pair of frames, on the encoder's device.

        Attention is torch's own, without a mask, so no kernel holds N × N scores.
        """
        rows, columns = sight.grid
        found = self.model.get_submodule("visual")(
            patch_rows(sight, device=self.device, dtype=self.dtype),
            grid_thw=torch.tensor([[1, rows, columns]], device=self.device),
            cu_seqlens=torch.tensor([0, rows * columns]),  # on the host, where every layer reads it
        )
        return VisionRows(merged=found.pooler_output, deepstack=tuple(found.deepstack_features))

    def _fill_in(self, embeds: Tensor, presentation: Presentation, *, see: See) -> dict[str, Any]:
        """Put vision rows in the place of pad tokens, and return what DeepStack adds to them later."""
        if not presentation.blocks:
            return {}
        is_vision = torch.zeros(embeds.shape[:2], dtype=torch.bool)  # [1, L]
        levels = []
        for block in presentation.blocks:
            rows = see(block.sight)
            embeds[0, block.start : block.stop] = rows.merged
            is_vision[0, block.start : block.stop] = True
            levels.append(rows.deepstack)
        return {
            "visual_pos_masks": is_vision.to(self.device),
            "deepstack_visual_embeds": [torch.cat(level) for level in zip(*levels, strict=True)],
        }


def build_on_meta(config: TextEncoderConfig) -> nn.Module:
    """Return transformers' Qwen3-VL of this architecture without its final norm, all tensors on `meta`."""
    from transformers import Qwen3VLConfig, Qwen3VLModel

    with torch.device("meta"):  # the files bring every value; at full size they are 51 GB
        model = Qwen3VLModel(
            Qwen3VLConfig(text_config=_text_fields(config), vision_config=_vision_fields(config))
        )
    model.set_attn_implementation("sdpa")
    model.language_model.norm = nn.Identity()
    model.visual.patch_embed = _PatchProjection(model.visual.patch_embed.proj)
    return model


class _PatchProjection(nn.Module):
    """The patch embedding as the product it is: a convolution is slower, and in float32 TF32 on a GPU."""

    def __init__(self, proj: nn.Conv3d) -> None:
        super().__init__()
        self.proj = proj

    def forward(self, patches: Tensor) -> Tensor:
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)  # [N, 1536] to [N, width]


def _text_fields(config: TextEncoderConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": 262_144,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "mrope_section": list(config.mrope_section),
            "mrope_interleaved": True,
        },
    }


def _vision_fields(config: TextEncoderConfig) -> dict[str, Any]:
    return {
        "depth": config.vision_num_layers,
        "hidden_size": config.vision_hidden_size,
        "intermediate_size": config.vision_intermediate_size,
        "num_heads": config.vision_num_heads,
        "patch_size": config.vision_patch,
        "out_hidden_size": config.hidden_size,
        "num_position_embeddings": config.vision_num_positions,
        "deepstack_visual_indexes": list(config.vision_deepstack_layers),
    }


def _restore_rotary(model: nn.Module, config: TextEncoderConfig, *, device: torch.device) -> None:
    """Compute the rotary frequencies, which no file holds, in float32 whatever the parameters' dtype."""
    vision_head_dim = config.vision_hidden_size // config.vision_num_heads
    frequencies = {
        "language_model.rotary_emb": inverse_frequencies(config.head_dim // 2, config.rope_theta),
        "visual.rotary_pos_emb": inverse_frequencies(vision_head_dim // 4, VISION_ROPE_THETA),  # per axis
    }
    for name, values in frequencies.items():
        module = model.get_submodule(name)
        for buffer in ("inv_freq", "original_inv_freq"):
            setattr(module, buffer, values.to(device, copy=True))
    assert not any(tensor.is_meta for tensor in model.buffers()), "transformers brought a new buffer"
