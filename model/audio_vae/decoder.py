"""The audio VAE's decoder network: 32 channels at 40 Hz through BigVGAN, up to one waveform.

The network is mono; left and right are two batch items. Every convolution's weight norm is folded, parameter
names are those of ComfyUI's checkpoints, and everything is float32. Module state is undefined until a
checkpoint is loaded. Knows nothing about statistics, track lengths or loudness rules.

Shapes: B items, T latent frames, N = hop * T samples, C channels of a stage.
"""

import torch
from torch import Tensor, nn

from model.audio_vae.activation import AliasFreeActivation
from model.config import AudioVaeConfig


class ResidualBlock(nn.Module):
    """Three or so dilated residual steps of one kernel size: x + conv(act(conv(act(x))))."""

    def __init__(self, channels: int, *, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=(kernel - 1) * d // 2)
            for d in dilations
        )
        self.convs2 = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, padding=(kernel - 1) // 2) for _ in dilations
        )
        self.activations = nn.ModuleList(AliasFreeActivation(channels) for _ in range(2 * len(dilations)))

    def forward(self, x: Tensor) -> Tensor:
        before, between = self.activations[::2], self.activations[1::2]
        for act1, conv1, act2, conv2 in zip(before, self.convs1, between, self.convs2, strict=True):
            x = x + conv2(act2(conv1(act1(x))))
        return x


class Vocoder(nn.Module):
    """Up-sampling stages, each followed by the mean of parallel residual blocks; no tanh at the end."""

    def __init__(self, config: AudioVaeConfig) -> None:
        super().__init__()
        self.num_kernels = len(config.resblock_kernel_sizes)
        self.conv_pre = nn.Conv1d(config.latent_dim, config.decoder_dim, 7, padding=3)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        channels = config.decoder_dim
        for rate, kernel in zip(config.decoder_rates, config.decoder_kernel_sizes, strict=True):
            up = nn.ConvTranspose1d(
                channels, channels // 2, kernel, stride=rate, padding=(kernel - rate) // 2
            )
            self.ups.append(nn.Sequential(up))  # the extra level is in the checkpoint's names
            channels //= 2
            for size in config.resblock_kernel_sizes:
                self.resblocks.append(
                    ResidualBlock(channels, kernel=size, dilations=config.resblock_dilations)
                )
        self.activation_post = AliasFreeActivation(channels)
        self.conv_post = nn.Conv1d(channels, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_pre(x)  # [B, C, T]
        for stage, up in enumerate(self.ups):
            x = up(x)  # half the channels, `rate` times the samples
            first = stage * self.num_kernels
            blocks = self.resblocks[first : first + self.num_kernels]
            x = torch.stack([block(x) for block in blocks]).sum(0) / self.num_kernels
        return self.conv_post(self.activation_post(x))  # [B, 1, N]


class AudioDecoder(nn.Module):
    """Latents to waveform, with the latent statistics that belong to the checkpoint."""

    latents_mean: Tensor
    latents_std: Tensor

    def __init__(self, config: AudioVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("latents_mean", torch.empty(config.latent_channels))
        self.register_buffer("latents_std", torch.empty(config.latent_channels))
        self.dec_in_proj = nn.Conv1d(config.latent_channels, config.latent_dim, 1)
        self.decoder = Vocoder(config)

    def denormalise(self, latents: Tensor) -> Tensor:
        """Turn the transformer's latents [2, 32, T] into the VAE's own."""
        return latents.float() * self.latents_std[:, None] + self.latents_mean[:, None]

    def forward(self, latents: Tensor) -> Tensor:
        """Decode denormalised latents [B, 32, T] to [B, 1, N], not yet clamped."""
        return self.decoder(self.dec_in_proj(latents))
