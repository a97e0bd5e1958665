"""Samplers: how one step moves a latent from one sigma to the next, given the estimates of its clean end.

x0 = x + sigma * velocity with the network's data-ward velocity. Both samplers are deterministic and cost one
evaluation a step. Every scalar is a 0-dim float32 CPU tensor and every operation rounds on its own: that
makes a replay of ComfyUI's and diffusers' runs equal to the last bit, so no expression here is simplified.
On CUDA torch divides by a host scalar through its reciprocal, which may be one ulp off.
Sources: diffusers 0.42.1 `MiniMaxH3Scheduler.step` (blend form); ComfyUI 783545f, all else.
Knows no network, no modality and no carry.
"""

from typing import Literal

import torch
from torch import Tensor

from queue_schemas.jobs import Sampler


def take_step(
    sampler: Sampler,
    x: Tensor,
    *,
    x0: Tensor,
    previous_x0: Tensor | None,
    sigmas: Tensor,
    step: int,
    euler_form: Literal["velocity", "blend"],
) -> Tensor:
    """Return the state at `sigmas[step + 1]`; `previous_x0` is the last step's, None at the first."""
    last = step == len(sigmas) - 2
    if sampler is Sampler.RES_MULTISTEP and previous_x0 is not None and not last:
        return res_multistep(x, x0=x0, previous_x0=previous_x0, sigmas=sigmas, step=step)
    euler = euler_velocity if euler_form == "velocity" else euler_blend
    return euler(x, x0, sigma=sigmas[step], sigma_next=sigmas[step + 1])


def euler_velocity(x: Tensor, x0: Tensor, *, sigma: Tensor, sigma_next: Tensor) -> Tensor:
    """Return x moved along (x - x0) / sigma; the last step ends within rounding of x0."""
    return x + (x - x0) / sigma * (sigma_next - sigma)


def euler_blend(x: Tensor, x0: Tensor, *, sigma: Tensor, sigma_next: Tensor) -> Tensor:
    """Return the same move as a mixture of x and x0; the last step ends in exactly x0."""
    ratio = sigma_next / sigma
    return ratio * x + (1 - ratio) * x0


def res_multistep(x: Tensor, *, x0: Tensor, previous_x0: Tensor, sigmas: Tensor, step: int) -> Tensor:
    """Return the second-order exponential step in log sigma, which extrapolates x0 from the last two."""
    previous, here, there = (-sigmas[step + offset].log() for offset in (-1, 0, 1))
    width = there - here
    reach = (previous - here) / width  # negative: the last estimate lies behind
    phi_1 = torch.expm1(-width) / -width
    phi_2 = (phi_1 - 1) / -width
    old = (phi_2 / reach).nan_to_num(nan=0.0)
    new = (phi_1 - phi_2 / reach).nan_to_num(nan=0.0)
    return torch.exp(-width) * x + width * (new * x0 + old * previous_x0)
