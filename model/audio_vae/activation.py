"""Alias-free SnakeBeta: up by two, the activation, down by two, each through one 12-tap low-pass filter.

Resampling by a short filter is a banded matrix, so a run of samples is resampled by one small matrix product
instead of a depthwise convolution: the same sums, without a convolution's set-up for a single channel.

Shapes: B items, C channels, N samples, K samples per band.
Source: BigVGAN as read from diffusers 0.42.1; the taps are those of `alias-free-torch`.
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_TAPS = 12
_BAND = 32  # K: wide enough for a matrix product, narrow enough that its zeros cost little


def low_pass_taps() -> Tensor:
    """Return the Kaiser-windowed sinc filter [1, 1, 12]: cutoff 1/4, half-width 0.3, sum 1."""
    attenuation = (
        2.285 * (NUM_TAPS // 2 - 1) * math.pi * 4 * 0.3 + 7.95
    )  # 51.02 dB, which the rule below needs > 50
    beta = 0.1102 * (attenuation - 8.7)
    window = torch.kaiser_window(NUM_TAPS, periodic=False, beta=beta, device="cpu")
    times = torch.arange(NUM_TAPS, device="cpu") - (NUM_TAPS - 1) / 2
    taps = window * torch.sinc(0.5 * times)
    return (taps / taps.sum()).view(1, 1, NUM_TAPS)


class SnakeBeta(nn.Module):
    """x + sin(a x)^2 / b, where the parameters hold log a and log b."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        strength = (self.beta.exp() + 1e-9).reciprocal()
        return x + strength[:, None] * torch.sin(self.alpha.exp()[:, None] * x).square()


class LowPass(nn.Module):
    """One filter under its checkpoint name."""

    filter: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filter", torch.empty(1, 1, NUM_TAPS))


class Downsample(nn.Module):
    """A filter one level deeper, as the checkpoint names it."""

    def __init__(self) -> None:
        super().__init__()
        self.lowpass = LowPass()


class AliasFreeActivation(nn.Module):
    """SnakeBeta at twice the rate; keeps the length. Edges repeat the outermost sample, at either rate."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.act = SnakeBeta(channels)
        self.upsample = LowPass()
        self.downsample = Downsample()

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-1]
        missing = -length % _BAND  # up to a whole number of bands; cut off again
        up = _banded(2.0 * self.upsample.filter, _up_taps(x.device))  # [K + 6, 2K]
        down = _banded(self.downsample.lowpass.filter, _down_taps(x.device))  # [2K + 10, K]

        padded = F.pad(x, (3, 3 + missing), mode="replicate")
        x = (padded.unfold(-1, _BAND + 6, _BAND) @ up).flatten(-2)[..., : 2 * length]  # [B, C, 2N]
        x = self.act(x)
        padded = F.pad(x, (5, 5 + 2 * missing), mode="replicate")
        return (padded.unfold(-1, 2 * _BAND + 10, 2 * _BAND) @ down).flatten(-2)[..., :length]


def _banded(taps: Tensor, index: Tensor) -> Tensor:
    """Spread 12 taps over a band matrix; index 12 stands for zero."""
    return F.pad(taps.flatten(), (0, 1))[index]


@functools.lru_cache(maxsize=4)
def _up_taps(device: torch.device) -> Tensor:
    """Return which tap sample r - 3 of a band lends to its up-sampled value j: index [K + 6, 2K].

    u[j] = sum over t of f[(j + 15) % 2 + 2 t] x[(j + 5) // 2 - t], t = 0 .. 5.
    """
    sample = torch.arange(_BAND + 6, device="cpu")[:, None]
    value = torch.arange(2 * _BAND, device="cpu")[None, :]
    back = (value + 5) // 2 + 3 - sample
    index = torch.where((back >= 0) & (back < NUM_TAPS // 2), (value + 15) % 2 + 2 * back, NUM_TAPS)
    return index.to(device)


@functools.lru_cache(maxsize=4)
def _down_taps(device: torch.device) -> Tensor:
    """Return which tap value r - 5 of a band lends to its sample k: index [2K + 10, K].

    y[k] = sum over t of f[t] s[2 k + t - 5], t = 0 .. 11.
    """
    value = torch.arange(2 * _BAND + 10, device="cpu")[:, None]
    sample = torch.arange(_BAND, device="cpu")[None, :]
    tap = value - 2 * sample
    index = torch.where((tap >= 0) & (tap < NUM_TAPS), tap, NUM_TAPS)
    return index.to(device)
