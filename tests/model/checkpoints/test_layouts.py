"""Files in diffusers' and the original layout, named by the real modules and held against the same tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from queue_schemas.inspections import Inspection

Write = Callable[..., Path]
Inspect = Callable[[Path], Inspection]


def transformer() -> nn.Module:
    from diffusers.models.transformers.transformer_minimax_h3 import MiniMaxH3Transformer3DModel

    return MiniMaxH3Transformer3DModel(
        num_attention_heads=2, attention_head_dim=128, hidden_size=256, num_layers=2, num_refiner_layers=1,
        ffn_dim=256, text_dim=64, freq_dim=64, time_embed_hidden_dim=256, time_embed_dim=64, rope_freq_dim=16,
    )  # fmt: skip


def video_vae() -> nn.Module:
    from diffusers.models.autoencoders.autoencoder_kl_minimax_h3 import AutoencoderKLMiniMaxH3

    return AutoencoderKLMiniMaxH3(
        block_out_channels=(32, 64, 64, 96, 96, 128), decoder_num_layers=2, decoder_num_attention_heads=2
    )


def audio_vae() -> nn.Module:
    from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import AutoencoderKLMiniMaxH3Audio

    return AutoencoderKLMiniMaxH3Audio(encoder_dim=8, latent_dim=256, decoder_dim=128, num_attention_heads=8)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")  # diffusers' choice
@pytest.mark.parametrize(
    ("build", "family", "layout"),
    [
        (transformer, "transformer", "diffusers"),
        (video_vae, "video_vae", "diffusers"),
        (audio_vae, "audio_vae", "original"),
    ],
)
def test_the_file_of_a_real_module_is_recognised_whole(
    build: Callable[[], nn.Module], family: str, layout: str, write_tensors: Write, inspect: Inspect
) -> None:
    with torch.device("meta"):
        names = build().state_dict()
    tensors: dict[str, Any] = {name: ("BF16", tuple(t.shape), b"\1") for name, t in names.items()}

    found = inspect(write_tensors(tensors))

    assert (found.family, found.layout) == (family, layout)
    assert (found.missing.names, found.unmatched.names, found.misshapen.names) == ((), (), ())
    assert found.problems == ()


def test_half_of_a_split_matrix_is_too_few_rows(write_tensors: Write, inspect: Inspect) -> None:
    with torch.device("meta"):
        names = transformer().state_dict()
    tensors = {
        n: ("BF16", tuple(t.shape), b"\1")
        for n, t in names.items()
        if n != "transformer_blocks.1.attn.to_v.weight"
    }

    found = inspect(write_tensors(tensors))

    assert found.misshapen.names == ("blocks.1.attn.qkv_proj.weight: [512, 256] instead of [768, 256]",)


def test_qwens_own_names_are_the_original_layout(write_tensors: Write, inspect: Inspect) -> None:
    from model.checkpoints.descriptions import describe

    tensors = {}
    for tensor in describe("te_qwen3vl_bf16", "tiny").tensors:
        wrapper = "model." if tensor.name.startswith("visual.") else ""
        name = wrapper + tensor.name.replace("model.", "model.language_model.", 1)
        tensors[name] = (tensor.dtype, tensor.shape, b"\1")
    more = {
        "lm_head.weight": ("BF16", (4, 4), b"\1"),
        "model.language_model.norm.weight": ("BF16", (4,), b"\1"),
    }

    found = inspect(write_tensors({**tensors, **more}))

    assert (found.family, found.layout) == ("text_encoder", "original")
    assert (found.missing.count, found.unmatched.names) == (0, ())
