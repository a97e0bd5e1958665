"""Small Qwen3-VL models with random weights, in files as ComfyUI and as transformers write them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from model.checkpoints.header import read_header
from model.config import RELEASED, TextEncoderConfig
from model.loading.models import load_text_encoder
from model.text_encoder.encoder import TextEncoder, build_on_meta
from model.text_encoder.layout import comfyui_name

SMALL = TextEncoderConfig(
    vocab_size=300,
    hidden_size=40,
    intermediate_size=96,
    num_layers=5,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    mrope_section=(4, 2, 2),
    vision_hidden_size=32,
    vision_intermediate_size=48,
    vision_num_layers=3,
    vision_num_heads=2,
    vision_num_positions=64,
    vision_deepstack_layers=(0, 1, 2),
)


def expected_shapes(config: TextEncoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of an unquantised file by ComfyUI's name."""
    return {comfyui_name(name): tuple(t.shape) for name, t in build_on_meta(config).state_dict().items()}


def random_weights(shapes: Mapping[str, tuple[int, ...]], *, seed: int = 0) -> dict[str, Tensor]:
    """Norms around 1, embeddings of 0.5 and unit gains, so that every weight shows in the output."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        if "norm" in name:
            return 1 + 0.2 * noise
        return 0.5 * noise if "embed" in name or len(shape) == 1 else noise * shape[1] ** -0.5

    return {name: draw(name, shape) for name, shape in shapes.items()}


def random_bytes(*shape: int, seed: int = 0) -> Tensor:
    """Pixels."""
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def transformers_fields(config: TextEncoderConfig, *, num_layers: int) -> dict[str, Any]:
    """Return what `Qwen3VLConfig` takes for `config` with another depth."""
    rope = {
        "rope_type": "default",
        "rope_theta": config.rope_theta,
        "mrope_section": list(config.mrope_section),
        "mrope_interleaved": True,
    }
    text = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rope_parameters": rope,
    }
    vision = {
        "depth": config.vision_num_layers,
        "hidden_size": config.vision_hidden_size,
        "intermediate_size": config.vision_intermediate_size,
        "num_heads": config.vision_num_heads,
        "out_hidden_size": config.hidden_size,
        "num_position_embeddings": config.vision_num_positions,
        "deepstack_visual_indexes": list(config.vision_deepstack_layers),
    }
    return {"text_config": text, "vision_config": vision}


def golden_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of the golden encoder; embedding rows that no case reads are ones."""
    weights = {
        name.removeprefix("weights."): value for name, value in tensors.items() if name.startswith("weights.")
    }
    embedding = torch.ones(RELEASED.text_encoder.vocab_size, 40, dtype=torch.bfloat16)
    embedding[tensors["embed_rows.ids"].long()] = tensors["embed_rows.values"]
    weights["model.embed_tokens.weight"] = embedding
    return weights


def loaded(
    weights: Mapping[str, Tensor],
    folder: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
) -> TextEncoder:
    """Write a text encoder's file and load it."""
    save_file(dict(weights), folder / "te.safetensors")
    header = read_header(folder / "te.safetensors")
    return load_text_encoder(header, device=torch.device(device), dtype=dtype)
