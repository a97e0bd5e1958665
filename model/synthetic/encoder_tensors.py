"""Names and shapes of the VAE encoders' tensors, which share the files of the decoders.

The encoders are not built in this version, but a file in ComfyUI's layout holds them, so a synthetic one does
too.
Source: the published headers of minimax_h3_video_vae_fp16 and minimax_h3_audio_vae_fp32.
"""

from collections.abc import Iterator, Sequence

Shapes = dict[str, tuple[int, ...]]


def video_encoder_shapes(widths: Sequence[int], *, latent_channels: int) -> Shapes:
    """Causal CNN of six levels of `widths` channels (released: 128, 256, 256, 512, 512, 1024)."""
    moments = 2 * latent_channels
    shapes: Shapes = {}
    shapes.update(_conv3d("encoder.conv_in", widths[0], 3, kernel=3))
    level_in = widths[0]
    for level, width in enumerate(widths):
        for block in range(2):
            prefix = f"encoder.down.{level}.block.{block}."
            source = level_in if block == 0 else width
            shapes.update(_norm(f"{prefix}norm1", source))
            shapes.update(_conv3d(f"{prefix}conv1", width, source, kernel=3))
            shapes.update(_norm(f"{prefix}norm2", width))
            shapes.update(_conv3d(f"{prefix}conv2", width, width, kernel=3))
            if source != width:
                shapes.update(_conv3d(f"{prefix}nin_shortcut", width, source, kernel=1))
        if level < 4:  # four levels halve the picture, the last two keep it
            shapes.update(_conv3d(f"encoder.down.{level}.downsample.conv", width, width, kernel=3))
        level_in = width
    shapes.update(_norm("encoder.norm_out", widths[-1]))
    shapes.update(_conv3d("encoder.conv_out", moments, widths[-1], kernel=3))
    shapes.update(_conv3d("quant_conv", moments, moments, kernel=1))
    return shapes


def audio_encoder_shapes(encoder_dim: int, *, latent_channels: int) -> Shapes:
    """Strided Snake CNN, causal-attention projection and the two heads; released `encoder_dim` is 64."""
    shapes: Shapes = dict(_conv1d("encoder.block.0", encoder_dim, 1, kernel=7))
    for stage, stride in enumerate((2, 4, 4, 5, 5)):
        width = encoder_dim * 2**stage
        prefix = f"encoder.block.{stage + 1}.block."
        for unit in range(3):
            shapes[f"{prefix}{unit}.block.0.alpha"] = (1, width, 1)
            shapes.update(_conv1d(f"{prefix}{unit}.block.1", width, width, kernel=7))
            shapes[f"{prefix}{unit}.block.2.alpha"] = (1, width, 1)
            shapes.update(_conv1d(f"{prefix}{unit}.block.3", width, width, kernel=1))
        shapes[f"{prefix}3.alpha"] = (1, width, 1)
        shapes.update(_conv1d(f"{prefix}4", 2 * width, width, kernel=2 * stride))
    wide, narrow = 32 * encoder_dim, latent_channels
    shapes["encoder.block.6.alpha"] = (1, wide, 1)
    shapes.update(_conv1d("encoder.block.7", wide, wide, kernel=3))
    for name, width in (("norm1", wide), ("norm3", wide), ("norm2", narrow), ("mlp.norm", narrow)):
        shapes.update(_norm(f"pre_block.{name}", width))
    shapes["pre_block.attn.qkv.weight"] = (3 * wide, wide)
    for name in ("q_bias", "v_bias", "zero_k_bias"):
        shapes[f"pre_block.attn.{name}"] = (wide,)
    for name, out, source in (
        ("attn.proj", narrow, narrow),
        ("proj", narrow, wide),
        ("mlp.w0", 2 * narrow, narrow),
        ("mlp.w1", 2 * narrow, narrow),
        ("mlp.w2", narrow, 2 * narrow),
    ):
        shapes[f"pre_block.{name}.weight"] = (out, source)
        shapes[f"pre_block.{name}.bias"] = (out,)
    for name in ("mean_proj", "logs_proj"):
        shapes.update(_conv1d(name, narrow, narrow, kernel=1))
    return shapes


def _conv3d(name: str, out: int, source: int, *, kernel: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (out, source, kernel, kernel, kernel)
    yield f"{name}.bias", (out,)


def _conv1d(name: str, out: int, source: int, *, kernel: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (out, source, kernel)
    yield f"{name}.bias", (out,)


def _norm(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)
