"""Architecture of MiniMax H3: one frozen dataclass per model, released values as defaults.

What a checkpoint's shapes fix is read from them when it is loaded; what no shape can tell is a constant here.
Sources: diffusers 0.42.1 configs, ComfyUI's model detection.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """The packed-sequence diffusion transformer.

    The attention width `num_heads * head_dim` (7168) is larger than `hidden_size` (5376).
    """

    hidden_size: int = 5376
    num_heads: int = 56
    head_dim: int = 128
    num_layers: int = 50
    num_refiner_layers: int = 2
    ffn_dim: int = 14336
    latent_channels: int = 24
    audio_channels: int = 32
    patch: int = 2
    text_dim: int = 5120
    time_freq_dim: int = 256
    time_hidden_dim: int = 5376
    time_embed_dim: int = 2688
    """Width of the AdaLN input; 8 in the pruned layout."""
    time_table_rows: int | None = None
    """Rows of `adaln_t_table` (1025) in the pruned layout; None in the full one."""
    rope_freq_dim: int = 16
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def attention_dim(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def video_row_dim(self) -> int:
        """Width of one video row: 24 channels × 2 × 2 latents."""
        return self.latent_channels * self.patch * self.patch

    @property
    def pruned(self) -> bool:
        return self.time_table_rows is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoEncoderConfig:
    """The video VAE's encoder: a causal CNN of levels, most of which end in a strided convolution."""

    channels: tuple[int, ...] = (128, 256, 256, 512, 512, 1024)
    blocks_per_level: int = 2
    space_strides: tuple[int, ...] = (2, 2, 2, 2, 1, 1)
    time_strides: tuple[int, ...] = (1, 2, 2, 1, 1, 1)
    """Their products are the decoder's patch: 16 pixels, 4 frames."""
    num_groups: int = 32
    norm_eps: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoVaeConfig:
    """The video VAE: its decoder, a ViT over latent voxels; clips and tiles are part of its definition."""

    latent_channels: int = 24
    decoder_dim: int = 2048
    num_layers: int = 36
    head_dim: int = 64
    num_register_tokens: int = 4
    ffn_dim: int = 8192
    patch_frames: int = 4
    patch_pixels: int = 16
    rope_theta: float = 100.0
    rope_dim_ratio: float = 0.75
    norm_eps: float = 1e-5
    clip_frames: int = 17
    token_drop: int = 3
    tile_pixels: int = 256
    tile_overlap_pixels: int = 64
    """Least overlap of two tiles."""
    encoder: VideoEncoderConfig | None = VideoEncoderConfig()
    """None: a file that holds the decoder alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioEncoderConfig:
    """The audio VAE's encoder: a strided CNN with Snake, and one causal attention down to the latents."""

    dim: int = 64
    """Channels before the first stage; each stage doubles them, up to the VAE's `latent_dim`."""
    rates: tuple[int, ...] = (2, 4, 4, 5, 5)
    """Of the stages; their product is that of the decoder's: 800 samples a latent."""
    num_heads: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioVaeConfig:
    """The audio VAE: its decoder, BigVGAN with alias-free SnakeBeta. Mono; stereo is two batch items."""

    latent_channels: int = 32
    latent_dim: int = 2048
    decoder_dim: int = 1024
    decoder_rates: tuple[int, ...] = (5, 5, 2, 2, 2, 2, 2)
    decoder_kernel_sizes: tuple[int, ...] = (9, 9, 4, 4, 4, 4, 4)
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    resblock_dilations: tuple[int, ...] = (1, 3, 5)
    encoder: AudioEncoderConfig | None = AudioEncoderConfig()
    """None: a file that holds the decoder alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoderConfig:
    """Qwen3-VL cut after its 50th language layer, without the final norm."""

    vocab_size: int = 151_936
    hidden_size: int = 5120
    intermediate_size: int = 25_600
    num_layers: int = 50
    num_heads: int = 64
    num_kv_heads: int = 8
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 5_000_000.0
    mrope_section: tuple[int, int, int] = (24, 20, 20)
    vision_hidden_size: int = 1152
    vision_intermediate_size: int = 4304
    vision_num_layers: int = 27
    vision_num_heads: int = 16
    vision_patch: int = 16
    vision_num_positions: int = 2304
    vision_deepstack_layers: tuple[int, ...] = (8, 16, 24)


@dataclass(frozen=True, slots=True, kw_only=True)
class H3Config:
    """All four models."""

    transformer: TransformerConfig = TransformerConfig()
    video_vae: VideoVaeConfig = VideoVaeConfig()
    audio_vae: AudioVaeConfig = AudioVaeConfig()
    text_encoder: TextEncoderConfig = TextEncoderConfig()


RELEASED = H3Config()
RELEASED_PRUNED = H3Config(transformer=TransformerConfig(time_embed_dim=8, time_table_rows=1025))
TINY = H3Config(
    transformer=TransformerConfig(
        hidden_size=256,
        num_heads=2,
        num_layers=2,
        num_refiner_layers=1,
        ffn_dim=256,
        text_dim=256,
        time_embed_dim=4,
        time_table_rows=17,
    ),
    video_vae=VideoVaeConfig(
        decoder_dim=128,
        num_layers=2,
        ffn_dim=512,
        encoder=VideoEncoderConfig(channels=(32, 64, 64, 96, 96, 128)),
    ),
    audio_vae=AudioVaeConfig(latent_dim=256, decoder_dim=128, encoder=AudioEncoderConfig(dim=8)),
    text_encoder=TextEncoderConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        vision_hidden_size=32,
        vision_intermediate_size=48,
        vision_num_layers=3,
        vision_num_heads=2,
        vision_num_positions=64,
        vision_deepstack_layers=(0, 1, 2),
    ),
)
"""Real architecture, small: `h3-tiny`."""
