"""The audio VAE's encoder network: a waveform through a CNN and one attention, to 32 channels at 40 Hz.

The network is mono; left and right are two batch items. Convolutions see both sides, and the attention all
that came before, so a sound cannot be encoded in pieces. Every convolution's weight norm is folded, parameter
names are those of ComfyUI's checkpoints, and everything is float32. Module state is undefined until a
checkpoint is loaded. Knows nothing about sample rates or remainders.

Shapes: B items, N = hop * T samples, T latent frames, C channels of a stage, H heads, D head dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import AudioEncoderConfig, AudioVaeConfig

DILATIONS = (1, 3, 9)
MLP_RATIO = 2


class Snake(nn.Module):
    """x + sin(a x)^2 / a; unlike the decoder's, the parameter is a itself and no logarithm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).square()


class ResidualUnit(nn.Module):
    """x + conv(act(dilated conv(act(x))))."""

    def __init__(self, channels: int, *, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake(channels),
            nn.Conv1d(channels, channels, 7, dilation=dilation, padding=3 * dilation),
            Snake(channels),
            nn.Conv1d(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class Stage(nn.Module):
    """Residual units, and a convolution to twice the channels at a `rate`-th of the samples."""

    def __init__(self, channels: int, *, rate: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(ResidualUnit(channels, dilation=dilation) for dilation in DILATIONS),
            Snake(channels),
            nn.Conv1d(channels, 2 * channels, 2 * rate, stride=rate, padding=-(-rate // 2)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class StridedCnn(nn.Module):
    """[B, 1, N] to [B, C, T]; one sequence, as the checkpoint numbers it."""

    def __init__(self, config: AudioEncoderConfig, *, latent_dim: int) -> None:
        super().__init__()
        widths = [config.dim << stage for stage in range(len(config.rates) + 1)]
        self.block = nn.Sequential(
            nn.Conv1d(1, widths[0], 7, padding=3),
            *(Stage(width, rate=rate) for width, rate in zip(widths, config.rates, strict=False)),
            Snake(widths[-1]),
            nn.Conv1d(widths[-1], latent_dim, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class NarrowingAttention(nn.Module):
    """Causal attention whose heads are averaged, and whose channels then are, down to the latent's."""

    zero_k_bias: Tensor

    def __init__(self, dim_in: int, dim_out: int, *, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.dim_out = num_heads, dim_out
        self.qkv = nn.Linear(dim_in, 3 * dim_in, bias=False)
        self.q_bias = nn.Parameter(torch.empty(dim_in))
        self.v_bias = nn.Parameter(torch.empty(dim_in))
        self.register_buffer("zero_k_bias", torch.empty(dim_in))  # in every file, and zero in each
        self.proj = nn.Linear(dim_out, dim_out)

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.cat([self.q_bias, self.zero_k_bias, self.v_bias])
        qkv = F.linear(x, self.qkv.weight, bias).unflatten(-1, (3, self.num_heads, -1))  # [B, T, 3, H, D]
        q, k, v = qkv.transpose(1, 3).unbind(2)  # each [B, H, T, D]
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(F.adaptive_avg_pool1d(heads.mean(1), self.dim_out))  # [B, T, 32]


class GeGlu(nn.Module):
    """Gated MLP with a norm of its own before it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.w0 = nn.Linear(dim, MLP_RATIO * dim)
        self.w1 = nn.Linear(dim, MLP_RATIO * dim)
        self.w2 = nn.Linear(MLP_RATIO * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.w2(F.gelu(self.w0(x), approximate="tanh") * self.w1(x))


class LatentProjection(nn.Module):
    """[B, T, C] to [B, T, 32]: attention beside a linear map, then an MLP."""

    def __init__(self, dim_in: int, dim_out: int, *, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim_in)
        self.attn = NarrowingAttention(dim_in, dim_out, num_heads=num_heads)
        self.norm3 = nn.LayerNorm(dim_in)
        self.proj = nn.Linear(dim_in, dim_out)
        self.norm2 = nn.LayerNorm(dim_out)
        self.mlp = GeGlu(dim_out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.proj(self.norm3(x)) + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class AudioEncoder(nn.Module):
    """Waveform to latents, with the latent statistics that belong to the checkpoint."""

    latents_mean: Tensor
    latents_std: Tensor

    def __init__(self, config: AudioVaeConfig) -> None:
        super().__init__()
        assert config.encoder is not None, "a file without an encoder has no such module"
        self.config = config
        channels = config.latent_channels
        self.register_buffer("latents_mean", torch.empty(channels))
        self.register_buffer("latents_std", torch.empty(channels))
        self.encoder = StridedCnn(config.encoder, latent_dim=config.latent_dim)
        self.pre_block = LatentProjection(config.latent_dim, channels, num_heads=config.encoder.num_heads)
        self.mean_proj = nn.Conv1d(channels, channels, 1)
        self.logs_proj = nn.Conv1d(channels, channels, 1)
        """The log of the posterior's spread: in every file, used by no pipeline."""

    def normalise(self, latents: Tensor) -> Tensor:
        """Turn the VAE's own latents [2, 32, T] into the transformer's."""
        return (latents - self.latents_mean[:, None]) / self.latents_std[:, None]

    def forward(self, waveform: Tensor) -> Tensor:
        """Encode [B, 1, N], N a multiple of the hop, to the posterior's mean [B, 32, T]."""
        x = self.pre_block(self.encoder(waveform).transpose(1, 2))
        return self.mean_proj(x.transpose(1, 2))
