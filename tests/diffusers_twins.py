"""Small models of diffusers 0.42.1 with random weights, and ours with the same."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from small_qwen import SMALL, expected_shapes, random_weights, transformers_fields
from torch import Tensor

from model.audio_vae import DECODER_PREFIXES, AudioEncoder
from model.config import AudioVaeConfig, VideoVaeConfig
from model.text_encoder.special_tokens import IMAGE_PAD, VIDEO_PAD
from model.text_encoder.tokenizer import Tokenizer
from model.video_vae import VideoEncoder

NORMALISED = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
PATCHES = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}


def video_vae_of_diffusers(config: VideoVaeConfig, *, tiled: bool) -> Any:
    """Return `AutoencoderKLMiniMaxH3` of a configuration, with random weights that all matter."""
    from diffusers.models.autoencoders.autoencoder_kl_minimax_h3 import AutoencoderKLMiniMaxH3

    assert config.encoder is not None
    generator = torch.Generator().manual_seed(7)
    theirs = AutoencoderKLMiniMaxH3(
        latent_channels=config.latent_channels,
        block_out_channels=config.encoder.channels,
        layers_per_block=config.encoder.blocks_per_level,
        spatial_downsample_factors=config.encoder.space_strides,
        temporal_downsample_factors=config.encoder.time_strides,
        norm_num_groups=config.encoder.num_groups,
        decoder_num_layers=1,
        decoder_num_attention_heads=1,
        decoder_attention_head_dim=8,
        latents_mean=torch.randn(config.latent_channels, generator=generator).tolist(),
        latents_std=(torch.rand(config.latent_channels, generator=generator) + 0.5).tolist(),
    ).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            spread = 0.3 if parameter.dim() == 1 else parameter[0].numel() ** -0.5
            parameter.copy_(spread * noise + (1.0 if "norm" in name and "weight" in name else 0.0))
    tile, overlap = config.tile_pixels, config.tile_overlap_pixels
    if tiled:
        theirs.enable_tiling(tile, tile, overlap, overlap)
    else:
        theirs.disable_tiling()
    return theirs


def video_encoder_like(theirs: Any, config: VideoVaeConfig) -> VideoEncoder:
    """Return our encoder with the weights of diffusers' VAE."""
    parts = {
        "down_blocks": "down",
        "resnets": "block",
        "conv_shortcut": "nin_shortcut",
        "downsamplers.0": "downsample",
    }
    weights = {}
    for name, tensor in theirs.state_dict().items():
        if name.startswith(("encoder.", "quant_conv.")):
            for part, ours in parts.items():
                name = name.replace(part, ours)  # noqa: PLW2901 - translated part by part
            weights[name] = tensor
    weights["latents_mean"] = torch.tensor(theirs.config.latents_mean)
    weights["latents_std"] = torch.tensor(theirs.config.latents_std)
    encoder = VideoEncoder(config)
    encoder.load_state_dict(weights)
    return encoder


def audio_twins(config: AudioVaeConfig) -> tuple[AudioEncoder, Any]:
    """The same random weights in both; diffusers' weight norm is folded into ours."""
    from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import AutoencoderKLMiniMaxH3Audio

    assert config.encoder is not None
    theirs = AutoencoderKLMiniMaxH3Audio(
        encoder_dim=config.encoder.dim,
        encoder_rates=config.encoder.rates,
        latent_dim=config.latent_dim,
        latent_channels=config.latent_channels,
        num_attention_heads=config.encoder.num_heads,
        decoder_dim=config.decoder_dim,
        decoder_rates=config.decoder_rates,
        decoder_kernel_sizes=config.decoder_kernel_sizes,
        resblock_kernel_sizes=(3,),
        resblock_dilation_sizes=((1,),),
    ).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            centre = 0.6 if name.endswith(("weight_g", "alpha")) else 0.0
            parameter.copy_(centre + 0.3 * noise)
    state, weights = theirs.state_dict(), {}
    for name, tensor in state.items():
        if name.endswith("weight_g"):
            direction = state[name.removesuffix("_g") + "_v"]
            length = direction.flatten(1).norm(dim=1).view_as(tensor)
            weights[name.removesuffix("_g")] = tensor * direction / length
        elif not name.endswith("weight_v"):
            weights[name] = tensor
    weights = {name: tensor for name, tensor in weights.items() if not name.startswith(DECODER_PREFIXES)}
    weights["latents_mean"] = torch.randn(config.latent_channels, generator=generator)
    weights["latents_std"] = torch.rand(config.latent_channels, generator=generator) + 0.5
    ours = AudioEncoder(config)
    ours.load_state_dict(weights)
    return ours, theirs


def text_components(folder: Path) -> SimpleNamespace:
    """Return what diffusers' text steps take: transformers' whole `SMALL` model, tokenizer and processor."""
    from transformers import (
        AutoTokenizer,
        Qwen2VLImageProcessorPil,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
    )

    tokenizer = Tokenizer.tiny()
    tokenizer.save(folder)
    pads = {
        "image_token_id": tokenizer.special_id(IMAGE_PAD),
        "video_token_id": tokenizer.special_id(VIDEO_PAD),
    }
    model = Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(**transformers_fields(SMALL, num_layers=SMALL.num_layers + 1), **pads)
    )
    weights = random_weights(expected_shapes(SMALL))
    model.model.load_state_dict(
        {name.replace("model.", "language_model.", 1): value for name, value in weights.items()}, strict=False
    )
    bounds = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
    processor = SimpleNamespace(
        image_processor=Qwen2VLImageProcessorPil(size=bounds, **NORMALISED, **PATCHES),
        video_processor=VideoProcessor(),
        image_token_ids=[pads["image_token_id"]],
        video_token_ids=[pads["video_token_id"]],
        audio_token_ids=[],
    )
    processor.create_mm_token_type_ids = lambda ids: Qwen3VLProcessor.create_mm_token_type_ids(processor, ids)
    return SimpleNamespace(
        text_encoder=model.eval(),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        processor=processor,
        text_encoder_layer=SMALL.num_layers,
        fps=24,
        text_tag=1,
        video_tag=0,
        _execution_device=torch.device("cpu"),
    )


class VideoProcessor:
    """Transformers' video processor but for its resize, which needs torchvision; frames need none."""

    temporal_patch_size = 2

    def __call__(self, videos: list[Any], **_: Any) -> dict[str, Tensor]:
        from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor, smart_resize

        rows, grids = [], []
        for frames in videos:
            count, height, width, _ = frames.shape
            bounds = {"min_pixels": 4_096, "max_pixels": 25_165_824}
            assert smart_resize(count, height, width, factor=32, **bounds) == (height, width)
            pixels = (torch.from_numpy(frames).permute(0, 3, 1, 2)[None].float() - 127.5) / 127.5
            patches, *grid = Qwen3VLVideoProcessor.patchify(None, pixels, **PATCHES)
            rows.append(patches[0])
            grids.append(grid)
        return {"pixel_values_videos": torch.cat(rows), "video_grid_thw": torch.tensor(grids)}


def run_step(step: Any, components: SimpleNamespace, **inputs: Any) -> Any:
    """Run one of diffusers' blocks and return the state that it leaves."""
    from diffusers.modular_pipelines.modular_pipeline import PipelineState

    state = PipelineState()
    for name, value in inputs.items():
        state.set(name, value)
    return step(components, state)[1]
