"""Tensor names of three layouts, told apart and turned into ComfyUI's."""

import pytest

from model.checkpoints.names import RENAMINGS, Architecture, Layout, comfy_name, pattern_of, wrapper_prefix


@pytest.mark.parametrize(
    ("family", "layout", "stored", "own"),
    [
        ("transformer", "comfyui", "blocks.3.attn.qkv_proj.weight", "blocks.3.attn.qkv_proj.weight"),
        (
            "transformer", "diffusers",
            "transformer_blocks.3.attn.to_q.weight", "blocks.3.attn.qkv_proj[q].weight",
        ),
        (
            "transformer", "diffusers",
            "transformer_blocks.3.attn.to_out.0.weight", "blocks.3.attn.out_proj.weight",
        ),
        (
            "transformer", "diffusers",
            "token_refiner.refiner_blocks.1.ff.net.0.proj.weight", "token_refiner.blocks.1.mlp.fc1.weight",
        ),
        ("transformer", "diffusers", "norm_out.linear.bias", "final_layer.adaln_proj.linear.bias"),
        ("transformer", "diffusers", "proj_out.weight", "final_layer.video_out.weight"),
        ("transformer", "diffusers", "audio_proj_in.weight", "audio_patch_proj.weight"),
        (
            "text_encoder", "original",
            "model.language_model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight",
        ),
        ("text_encoder", "original", "model.visual.pos_embed.weight", "visual.pos_embed.weight"),
        (
            "video_vae", "diffusers",
            "encoder.down_blocks.1.resnets.0.conv_shortcut.bias", "encoder.down.1.block.0.nin_shortcut.bias",
        ),
        (
            "video_vae", "diffusers",
            "decoder.transformer_blocks.9.attn.to_v.bias", "decoder.transformer_blocks.9.attn.to_qkv[v].bias",
        ),
        (
            "video_vae", "diffusers",
            "decoder.transformer_blocks.9.ff.net.2.bias", "decoder.transformer_blocks.9.ff.w2.bias",
        ),
        ("audio_vae", "original", "encoder.block.0.weight_v", "encoder.block.0.weight"),
    ],
)  # fmt: skip
def test_a_name_of_another_layout_becomes_comfyuis(
    family: Architecture, layout: Layout, stored: str, own: str
) -> None:
    assert comfy_name(stored, RENAMINGS[family, layout]) == own


def test_a_wrapper_is_what_every_name_begins_with() -> None:
    names = ["diffusion_model.a.weight", "diffusion_model.b"]

    assert wrapper_prefix(names) == "diffusion_model."
    assert wrapper_prefix([*names, "c"]) == wrapper_prefix([]) == ""


def test_numbers_become_stars_and_names_with_digits_stay() -> None:
    assert pattern_of("blocks.10.mlp.fc1.weight") == "blocks.*.mlp.fc1.weight"
    assert pattern_of("decoder.ups.3.0.weight") == "decoder.ups.*.*.weight"
