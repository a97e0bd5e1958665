"""The video VAE's decoder network: one tile of latent voxels through a plain ViT, out to pixels.

Attention is full: every voxel of the tile, the register tokens and one zero token see each other. Parameter
names are those of ComfyUI's checkpoints, so a file's decoder tensors load as they are. Module state is
undefined until a checkpoint is loaded. Knows nothing about clips, tiles, seams or uint8.

Dtypes: the residual stream, all norms, the scales and the rotary angles are float32; matrix products,
attention and the result are in the dtype of the weights (`parameter_dtypes`): the rule of diffusers 0.42.1.

Shapes: B tiles, T x h x w latents of a tile, S = T * h * w + registers + 1 tokens, H heads, D head dim, C = H
* D.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import VideoVaeConfig
from model.video_vae.rope import apply_rope, rope_table

PIXEL_CHANNELS = 3


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Unmasked self-attention; q and k are normed per head, without a weight, before they are turned.

    Rows of `to_qkv` are interleaved per head: q, k, v of head 0, then of head 1.
    """

    def __init__(self, config: VideoVaeConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.eps = config.norm_eps
        self.to_qkv = nn.Linear(config.decoder_dim, 3 * config.decoder_dim)
        self.to_out = nn.Linear(config.decoder_dim, config.decoder_dim)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        qkv = self.to_qkv(x).unflatten(-1, (-1, 3, self.head_dim)).transpose(1, 2)  # [B, H, S, 3, D]
        q, k, v = qkv.unbind(-2)  # each [B, H, S, D]
        q, k = apply_rope(self._norm(q), *rope), apply_rope(self._norm(k), *rope)
        heads = F.scaled_dot_product_attention(q, k, v)
        return self.to_out(heads.transpose(1, 2).flatten(-2))  # [B, S, C]

    def _norm(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (self.head_dim,), eps=self.eps).to(x.dtype)


class GatedFeedForward(nn.Module):
    """SiLU-gated MLP; the first half of `w1`'s rows is the gate, the second what it gates."""

    def __init__(self, config: VideoVaeConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.decoder_dim, 2 * config.ffn_dim)
        self.w2 = nn.Linear(config.ffn_dim, config.decoder_dim)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * up)


class DecoderBlock(nn.Module):
    """Pre-norm block; `scale1` and `scale2` weigh each branch per channel, after its bias."""

    def __init__(self, config: VideoVaeConfig) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.decoder_dim, config.norm_eps)
        self.attn = Attention(config)
        self.scale1 = nn.Parameter(torch.empty(config.decoder_dim))
        self.norm2 = RMSNorm(config.decoder_dim, config.norm_eps)
        self.ff = GatedFeedForward(config)
        self.scale2 = nn.Parameter(torch.empty(config.decoder_dim))

    def forward(self, x: Tensor, *, rope: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
        x = x + self.scale1 * self.attn(self.norm1(x).to(dtype), rope)  # float32 [B, S, C]
        return x + self.scale2 * self.ff(self.norm2(x).to(dtype))


class VoxelTransformer(nn.Module):
    """Latent voxels as tokens, blocks, and one linear map from each token to its 4 x 16 x 16 pixels."""

    def __init__(self, config: VideoVaeConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.decoder_dim
        patch_values = PIXEL_CHANNELS * config.patch_frames * config.patch_pixels**2
        self.x_embedder = nn.Linear(config.latent_channels, dim)
        self.register_tokens = nn.Parameter(torch.empty(1, config.num_register_tokens, dim))
        # In every file, used by nothing: a leftover of training.
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim))
        self.transformer_blocks = nn.ModuleList([DecoderBlock(config) for _ in range(config.num_layers)])
        self.norm_out = nn.LayerNorm(dim, eps=config.norm_eps)
        self.proj_out = nn.Linear(dim, patch_values)

    def forward(self, voxels: Tensor) -> Tensor:
        """Turn `voxels` [B, T, h, w, latent channels] into pixels [B, 3, 4T, 16h, 16w]."""
        config, dtype = self.config, voxels.dtype
        batch, size = voxels.shape[0], (voxels.shape[1], voxels.shape[2], voxels.shape[3])
        tokens = self.x_embedder(voxels.flatten(1, 3))  # [B, T * h * w, C]
        num_voxels = tokens.shape[1]
        registers = self.register_tokens.expand(batch, -1, -1)
        zero = torch.zeros_like(tokens[:, :1])  # zero only here: biases change it, and it is attended to
        x = torch.cat([tokens, registers, zero], dim=1).float()  # [B, S, C]

        cos, sin = rope_table(
            size,
            config.num_register_tokens + 1,
            rotated=int(config.head_dim * config.rope_dim_ratio),
            theta=config.rope_theta,
            device=x.device,
        )
        rope = (cos.to(dtype), sin.to(dtype))
        for block in self.transformer_blocks:
            x = block(x, rope=rope, dtype=dtype)
        x = self.proj_out(self.norm_out(x[:, :num_voxels]).to(dtype))  # [B, T * h * w, 3 * 4 * 16 * 16]
        return self._unpatchify(x.unflatten(1, size))

    def _unpatchify(self, x: Tensor) -> Tensor:
        pixels = self.config.patch_pixels
        x = x.unflatten(-1, (PIXEL_CHANNELS, self.config.patch_frames, pixels, pixels))
        x = x.permute(0, 4, 1, 5, 2, 6, 3, 7)  # [B, 3, T, 4, h, 16, w, 16]
        return x.flatten(6, 7).flatten(4, 5).flatten(2, 3)


class VideoDecoder(nn.Module):
    """Decoder of one tile, with the latent statistics that belong to its checkpoint."""

    latents_mean: Tensor
    latents_std: Tensor

    def __init__(self, config: VideoVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("latents_mean", torch.empty(config.latent_channels))
        self.register_buffer("latents_std", torch.empty(config.latent_channels))
        self.post_quant_conv = nn.Conv3d(config.latent_channels, config.latent_channels, kernel_size=1)
        self.decoder = VoxelTransformer(config)

    def denormalise(self, latents: Tensor) -> Tensor:
        """Turn the transformer's latents [24, T, h, w] into the VAE's own, in float32."""
        return (
            latents.float() * self.latents_std[:, None, None, None] + self.latents_mean[:, None, None, None]
        )

    def forward(self, latents: Tensor) -> Tensor:
        """Decode denormalised tiles [B, 24, T, h, w] to [B, 3, 4T, 16h, 16w], ImageNet-normalised RGB."""
        weight = self.post_quant_conv.weight
        # A 1 x 1 x 1 convolution is a linear map of channels; as one it never meets cuDNN's TF32.
        voxels = latents.to(weight.dtype).permute(0, 2, 3, 4, 1)  # [B, T, h, w, 24]
        return self.decoder(F.linear(voxels, weight.flatten(1), self.post_quant_conv.bias))
