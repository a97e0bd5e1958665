"""`TextEncoder`: Qwen3-VL up to a middle layer; a presentation in, one row of features per token out.

The stack ends at `config.num_layers` and its final norm is gone: H3 was trained on the residual stream.
transformers supplies the modules, built without memory and fed by assignment, so a linear can be exchanged
for a quantised one before that. The vision tower is loaded too, though text alone does not use it. Knows
neither files nor the transformer that reads the features.

Shapes: L tokens, C = hidden_size.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import torch
from torch import Tensor, nn

from model.config import TextEncoderConfig
from model.errors import CheckpointMismatchError, EmptyPromptError, TokenizerMismatchError
from model.rotary import inverse_frequencies
from model.shapes import Shape
from model.text_encoder.layout import comfyui_name, config_from_shapes, module_name
from model.text_encoder.presentation import Presentation

__all__ = ["TextEncoder", "build_on_meta", "config_from_shapes", "expected_shapes"]

VISION_ROPE_THETA: Final = 10_000.0
FLOATS: Final = frozenset({torch.bfloat16, torch.float16, torch.float32})


class TextEncoder:
    """The frozen conditioner. No `nn.Module`: a `.to(dtype)` would round the rotary frequencies."""

    def __init__(self, config: TextEncoderConfig, model: nn.Module) -> None:
        self.config = config
        self.model = model

    @classmethod
    def from_tensors(
        cls,
        config: TextEncoderConfig,
        tensors: Mapping[str, Tensor],
        *,
        source: Path,
        dtype: torch.dtype = torch.bfloat16,
    ) -> Self:
        """Make the encoder of a file's tensors, where they lie, computing in `dtype`.

        Names are ComfyUI's or the official ones. Tensors that are `dtype` already are taken without a copy.
        Raises CheckpointMismatchError, which lists every missing, unexpected and wrong tensor.
        """
        model = build_on_meta(config)
        other = [f"{n}: stored as {t.dtype}" for n, t in tensors.items() if t.dtype not in FLOATS]
        check_exact(_shapes(model), {n: t.shape for n, t in tensors.items()}, source=source, wrong=other)
        own = {module_name(name): tensor.to(dtype) for name, tensor in tensors.items()}
        model.load_state_dict(own, assign=True)
        _restore_rotary(model, config, device=next(iter(own.values())).device)
        return cls(config, model.eval().requires_grad_(False))

    @property
    def device(self) -> torch.device:
        return self._embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.weight.dtype

    @torch.no_grad()
    def encode(self, presentation: Presentation) -> Tensor:
        """Return the text features [L, C], in the encoder's dtype and on its device.

        Raises EmptyPromptError and TokenizerMismatchError.
        """
        if not presentation.ids:
            raise EmptyPromptError
        if max(presentation.ids) >= self.config.vocab_size:  # on a GPU such an id would be a sticky fault
            raise TokenizerMismatchError(largest_id=max(presentation.ids), num_rows=self.config.vocab_size)
        ids = torch.tensor([presentation.ids], dtype=torch.int64, device=self.device)  # [1, L]
        # No mask: one request, never padded, so plain causal attention and positions 0..L-1 are exact.
        features: Tensor = self.model(input_ids=ids, use_cache=False).last_hidden_state  # [1, L, C]
        return features[0]

    @property
    def _embedding(self) -> nn.Embedding:
        embedding = self.model.get_submodule("language_model.embed_tokens")
        assert isinstance(embedding, nn.Embedding)
        return embedding


def expected_shapes(config: TextEncoderConfig) -> dict[str, Shape]:
    """Return every tensor of an unquantised file by ComfyUI's name; needs no weights."""
    return _shapes(build_on_meta(config))


def build_on_meta(config: TextEncoderConfig) -> nn.Module:
    """Return transformers' Qwen3-VL of this architecture without its final norm, all tensors on `meta`."""
    from transformers import Qwen3VLConfig, Qwen3VLModel

    with torch.device("meta"):  # the files bring every value; at full size they are 51 GB
        model = Qwen3VLModel(
            Qwen3VLConfig(text_config=_text_fields(config), vision_config=_vision_fields(config))
        )
    model.set_attn_implementation("sdpa")
    model.language_model.norm = nn.Identity()
    return model


def check_exact(
    want: Mapping[str, Shape],
    shapes: Mapping[str, Sequence[int]],
    *,
    source: Path,
    wrong: Iterable[str] = (),
) -> None:
    """Raise CheckpointMismatchError unless names and shapes are exactly those of `want` (ComfyUI's names).

    `wrong` are faults that the caller has found.
    """
    found = {name: comfyui_name(module_name(name)) for name in shapes}
    times = Counter(found.values())
    missing = sorted(want.keys() - times.keys())
    unexpected = sorted(name for name, own in found.items() if own not in want or times[own] > 1)
    misshapen = [
        f"{name}: {tuple(shape)} instead of {want[found[name]]}"
        for name, shape in shapes.items()
        if tuple(shape) != want.get(found[name], tuple(shape))
    ]
    faults = sorted([*misshapen, *wrong])
    if missing or unexpected or faults:
        raise CheckpointMismatchError(source, missing=missing, unexpected=unexpected, wrong=faults)


def _shapes(model: nn.Module) -> dict[str, Shape]:
    return {comfyui_name(name): tuple(tensor.shape) for name, tensor in model.state_dict().items()}


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
