"""Sigma grids, and the plan by which one network call moves video and audio.

`steps` counts model evaluations, as ComfyUI does; diffusers' `num_inference_steps` is one more, because it
counts the final 0. sigma 1 is pure noise, 0 is clean; the network is told t = 1 - sigma, so its t = 1 is
clean. Grids are float32 on the CPU: one grid on every accelerator, and a 0-dim CPU scalar reaches a kernel
without a synchronise. Sources: diffusers 0.42.1 `MiniMaxH3Scheduler`; ComfyUI 783545f, scheduler `simple`
(golden `sigmas`). Knows no latents and no samplers.

Shapes: K evaluations.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from model.errors import ScheduleError
from queue_schemas.conventions import Conventions
from queue_schemas.jobs import Schedule

TABLE_ENTRIES = 1000
"""ComfyUI quantises sigma to the entries t = 1/1000, 2/1000, ..., 1 of a shifted table."""
TIMESTEP_SCALE = 1000.0
SIGMA_MIN = 1e-6
"""ComfyUI's network clamps the sigma it is sent; no schedule of this project comes near it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSigmas:
    """The sigmas of one stream."""

    sigmas: Tensor
    """[K + 1] what the sampler steps along, noisiest first, ending in exactly 0."""
    x0_sigmas: Tensor
    """[K] sigma of x0 = x + sigma * velocity. The blend form takes it back from the timestep as 1 - t, which
    float32 does not return exactly below 0.5; the velocity form takes the grid's."""
    timesteps: Tensor
    """[K] t = 1 - sigma of the stream's own noise level, as the network is told it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioCarry:
    """How audio travels on the video's sigmas: y = (sigma_video / sigma_audio) * x, see `carry.py`."""

    ratio: float
    """g = shift_video / shift_audio: how much larger than the clean latents the carried ones end up."""
    scale: Tensor
    """[K] sigma_audio / sigma_video: from y to x."""
    gain: Tensor
    """[K] 1 + (g - 1) * sigma_audio: what the audio velocity counts in the carried one."""


class Timesteps(NamedTuple):
    """t = 1 - sigma of each stream, 1 being clean: float32 values held as Python floats.

    They live on the host so that whoever needs their number or order does not wait for the device.
    """

    video: float
    audio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SigmaPlan:
    """Both streams' sigmas, paired by step: one evaluation moves both."""

    video: StreamSigmas
    audio: StreamSigmas
    carry: AudioCarry | None
    """None when audio steps on its own grid."""

    @property
    def steps(self) -> int:
        return len(self.video.timesteps)

    def timesteps(self, step: int) -> Timesteps:
        """Return what the network is told at evaluation `step`, counted from 0."""
        return Timesteps(float(self.video.timesteps[step]), float(self.audio.timesteps[step]))


def shift_sigmas(t: Tensor, shift: float) -> Tensor:
    """Push grid values in [0, 1] towards 1: shift * t / (1 + (shift - 1) * t); 0 and 1 stay."""
    return shift * t / (1 + (shift - 1) * t)


def linear_sigmas(steps: int, *, shift: float) -> Tensor:
    """Return `steps + 1` sigmas of diffusers' grid, evenly spaced before the shift; no value repeats."""
    t = torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float32, device="cpu")
    return shift_sigmas(t, shift).unique_consecutive()  # a huge shift makes neighbours collide near 1


def simple_sigmas(steps: int, *, shift: float) -> Tensor:
    """Return `steps + 1` sigmas taken from ComfyUI's table at even strides from its noisy end, then 0."""
    table = torch.arange(1, TABLE_ENTRIES + 1, dtype=torch.float32, device="cpu") / TABLE_ENTRIES
    stride = TABLE_ENTRIES / steps
    # The stride is a double that is multiplied, then truncated: at 38 and 76 steps that hits another entry
    # than exact division would, 19 * (1000 / 38) being 499.99....
    entries = [TABLE_ENTRIES - 1 - int(step * stride) for step in range(steps)]
    sigmas = shift_sigmas(table, shift)[entries]
    return torch.cat([sigmas, sigmas.new_zeros(1)])


def audio_sigmas(video_sigmas: Tensor, *, shift_video: float, shift_audio: float) -> Tensor:
    """Return the audio sigma that belongs to each video sigma: one shift undone, the other applied."""
    t = video_sigmas / (shift_video - (shift_video - 1) * video_sigmas)
    return shift_sigmas(t, shift_audio)


def plan_sigmas(
    schedule: Schedule, *, steps: int, shift_video: float, shift_audio: float, conventions: Conventions
) -> SigmaPlan:
    """Return the plan of a run of `steps` evaluations. Raises ScheduleError when a grid repeats a sigma."""
    grid = {Schedule.SIMPLE: simple_sigmas, Schedule.LINEAR: linear_sigmas}[schedule]
    video = _stream(_strictly_falling(grid(steps, shift=shift_video), steps, shift_video), conventions)
    if conventions.audio_clock == "own":
        audio = _stream(_strictly_falling(grid(steps, shift=shift_audio), steps, shift_audio), conventions)
        return SigmaPlan(video=video, audio=audio, carry=None)

    video_sigmas = _sent_sigmas(video.sigmas[:-1], conventions)
    sigmas = audio_sigmas(video_sigmas, shift_video=shift_video, shift_audio=shift_audio)
    ratio = shift_video / shift_audio
    carry = AudioCarry(ratio=ratio, scale=sigmas / video_sigmas, gain=1 + (ratio - 1) * sigmas)
    audio = StreamSigmas(sigmas=video.sigmas, x0_sigmas=video.x0_sigmas, timesteps=1 - sigmas)
    return SigmaPlan(video=video, audio=audio, carry=carry)


def _stream(sigmas: Tensor, conventions: Conventions) -> StreamSigmas:
    timesteps = 1 - _sent_sigmas(sigmas[:-1], conventions)
    x0_sigmas = 1 - timesteps if conventions.euler_form == "blend" else sigmas[:-1]
    return StreamSigmas(sigmas=sigmas, x0_sigmas=x0_sigmas, timesteps=timesteps)


def _sent_sigmas(sigmas: Tensor, conventions: Conventions) -> Tensor:
    """Return the sigmas as the network reads them: a trip through sigma * 1000 may move one by an ulp."""
    if not conventions.timestep_via_1000:
        return sigmas
    return (sigmas * TIMESTEP_SCALE / TIMESTEP_SCALE).clamp(min=SIGMA_MIN)


def _strictly_falling(sigmas: Tensor, steps: int, shift: float) -> Tensor:
    # The streams are paired by step, so a grid that lost a repeated value has no partner in the other one.
    if len(sigmas) != steps + 1 or not bool((sigmas[1:] < sigmas[:-1]).all()):
        raise ScheduleError(steps=steps, shift=shift)
    return sigmas
