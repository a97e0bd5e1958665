"""The video VAE's encoder network: one tile of one clip through a causal CNN, out to its posterior's moments.

The one thing to know: no frame sees a later one, and norms look at one frame at a time, so the first latents
of a clip are the same whatever follows. Parameter names are those of ComfyUI's checkpoints; everything is
float32 (the rule of diffusers 0.42.1). Activations lie with their channels last, as cuDNN's kernels want
them: on an H200 that, and one copy for both paddings, made an encode 1.4 times as fast. Module state is
undefined until a checkpoint is loaded. Knows nothing about clips, tiles, posteriors or bytes.

Shapes: B tiles, T frames of H x W pixels, t = 1 + (T - 1) / 4 latent frames, h = H / 16, w = W / 16,
C channels of a level.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import VideoEncoderConfig, VideoVaeConfig

PIXEL_CHANNELS = 3
KERNEL = 3


class CausalConv3d(nn.Conv3d):
    """A 3 x 3 x 3 convolution of the frame at hand and the two before it; zeros stand before the first."""

    def __init__(
        self, dim_in: int, dim_out: int, *, stride: tuple[int, int, int] = (1, 1, 1), before: int = 1
    ) -> None:
        """`before` is the border on the near sides; on the far ones it is 1."""
        super().__init__(dim_in, dim_out, KERNEL, stride=stride)
        self.before = before

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] == 1:  # a picture: two thirds of the sums would be of zeros
            padded, weight = bordered(x, before=self.before, frames=0), self.weight[:, :, -1:]
        else:
            padded, weight = bordered(x, before=self.before, frames=KERNEL - 1), self.weight
        return F.conv3d(padded, weight, self.bias, self.stride)


def bordered(x: Tensor, *, before: int, frames: int) -> Tensor:
    """Pad [B, C, T, H, W] by `frames` of zeros in front, and each frame by what lies inside its borders.

    The near borders are `before` wide, 0 or 1, the far ones 1.
    """
    batch, channels, length, height, width = x.shape
    sizes = (batch, channels, length + frames, height + before + 1, width + before + 1)
    padded = torch.empty(sizes, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
    padded[:, :, :frames] = 0
    inside = padded[:, :, frames:]
    inside[..., before : before + height, before : before + width] = x
    inside[..., before : before + height, -1] = x[..., -2]
    inside[..., before : before + height, :before] = x[..., 1 : 1 + before]
    inside[..., -1, :] = inside[..., -3, :]
    inside[..., :before, :] = inside[..., before + 1 : 2 * before + 1, :]
    return padded


class FrameNorm(nn.GroupNorm):
    """Group norm of each frame by itself."""

    def forward(self, x: Tensor) -> Tensor:
        frames = x.permute(0, 2, 3, 4, 1)  # [B, T, H, W, C], as it lies in memory
        pixels = frames.flatten(2, 3).flatten(0, 1)  # [B T, H W, C]
        groups = pixels.unflatten(-1, (self.num_groups, -1))  # [B T, H W, G, C / G]
        var, mean = torch.var_mean(groups, dim=(1, 3), correction=0, keepdim=True)
        scale = self.weight.view(self.num_groups, -1) * (var + self.eps).rsqrt()  # [B T, 1, G, C / G]
        shift = self.bias.view(self.num_groups, -1) - mean * scale
        normed = torch.addcmul(shift.flatten(2), pixels, scale.flatten(2))
        return normed.view(frames.shape).permute(0, 4, 1, 2, 3)


class ResidualBlock(nn.Module):
    """x + conv(act(norm(conv(act(norm(x)))))); a plain 1 x 1 x 1 convolution where the channels change."""

    def __init__(self, dim_in: int, dim_out: int, config: VideoEncoderConfig) -> None:
        super().__init__()
        self.norm1 = FrameNorm(config.num_groups, dim_in, eps=config.norm_eps)
        self.conv1 = CausalConv3d(dim_in, dim_out)
        self.norm2 = FrameNorm(config.num_groups, dim_out, eps=config.norm_eps)
        self.conv2 = CausalConv3d(dim_out, dim_out)
        self.nin_shortcut = nn.Conv3d(dim_in, dim_out, 1) if dim_in != dim_out else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (x if self.nin_shortcut is None else self.nin_shortcut(x))


class Downsample(nn.Module):
    """A strided convolution; only the right and the bottom border are padded before it."""

    def __init__(self, dim: int, *, time_stride: int, space_stride: int) -> None:
        super().__init__()
        self.conv = CausalConv3d(dim, dim, stride=(time_stride, space_stride, space_stride), before=0)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class Level(nn.Module):
    """Residual blocks of one width, and what makes their result smaller."""

    def __init__(self, dim_in: int, index: int, config: VideoEncoderConfig) -> None:
        super().__init__()
        dim = config.channels[index]
        widths = [dim_in, *[dim] * config.blocks_per_level]
        self.block = nn.ModuleList(
            ResidualBlock(before, after, config) for before, after in itertools.pairwise(widths)
        )
        time, space = config.time_strides[index], config.space_strides[index]
        self.downsample = Downsample(dim, time_stride=time, space_stride=space) if time * space > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        for block in self.block:
            x = block(x)
        return x if self.downsample is None else self.downsample(x)


class CausalCnn(nn.Module):
    """Levels between two convolutions."""

    def __init__(self, config: VideoEncoderConfig, *, latent_channels: int) -> None:
        super().__init__()
        first, last = config.channels[0], config.channels[-1]
        self.conv_in = CausalConv3d(PIXEL_CHANNELS, first)
        self.down = nn.ModuleList(
            Level(dim_in, index, config) for index, dim_in in enumerate((first, *config.channels[:-1]))
        )
        self.norm_out = FrameNorm(config.num_groups, last, eps=config.norm_eps)
        self.conv_out = CausalConv3d(last, 2 * latent_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_in(x)
        for level in self.down:
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class VideoEncoder(nn.Module):
    """Encoder of one tile, with the latent statistics that belong to its checkpoint."""

    latents_mean: Tensor
    latents_std: Tensor

    def __init__(self, config: VideoVaeConfig) -> None:
        super().__init__()
        assert config.encoder is not None, "a file without an encoder has no such module"
        self.config = config
        moments = 2 * config.latent_channels
        self.register_buffer("latents_mean", torch.empty(config.latent_channels))
        self.register_buffer("latents_std", torch.empty(config.latent_channels))
        self.encoder = CausalCnn(config.encoder, latent_channels=config.latent_channels)
        self.quant_conv = nn.Conv3d(moments, moments, kernel_size=1)

    def normalise(self, latents: Tensor) -> Tensor:
        """Turn the VAE's own latents [24, t, h, w] into the transformer's, in float32."""
        return (latents.float() - self.latents_mean[:, None, None, None]) / self.latents_std[
            :, None, None, None
        ]

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode ImageNet-normalised tiles [B, 3, T, H, W] to means and log variances [B, 48, t, h, w]."""
        return self.quant_conv(self.encoder(pixels.contiguous(memory_format=torch.channels_last_3d)))
